#!/usr/bin/env bash
# Installs the real sglang-router that the integration tests send through, in a venv of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
version=0.3.2
venv=.tools/sglang-router-$version
if [ ! -x "$venv/bin/smg" ] || ! "$venv/bin/smg" --help >/dev/null 2>&1; then
    need python3 python3 python3-venv
    rm -rf "$venv"
    mkdir -p .tools
    python3 -m venv "$venv" >/dev/null 2>&1 || { install python3-venv && rm -rf "$venv" && python3 -m venv "$venv"; }
    "$venv/bin/pip" install --quiet "sglang-router==$version"
fi
echo "sglang-router $version: $venv/bin/smg"
