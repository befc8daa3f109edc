#!/usr/bin/env bash
# Installs rotel, a real OpenTelemetry collector that the integration tests and scripts/trace-cost.sh send to, in a venv
# of its own (54 MB).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
version=0.0.1a15
venv=.tools/rotel
if [ ! -x "$venv/rotel-agent" ] || ! "$venv/rotel-agent" --help >/dev/null 2>&1; then
    echo "installing rotel $version in $venv (about a minute)"
    python_venv "$venv" "rotel==$version"
    ln -s "$(cd "$venv" && find lib -name rotel-agent -type f)" "$venv/rotel-agent"
fi
echo "rotel $version: $venv/rotel-agent"
