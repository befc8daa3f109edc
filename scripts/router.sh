#!/usr/bin/env bash
# Installs the real routers that the integration tests send through, each in a venv of its own. `router.sh smg` brings the newest
# alone.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
install_router() {
    local package=$1 version=$2
    local venv=.tools/$package-$version
    if [ ! -x "$venv/bin/smg" ] || ! "$venv/bin/smg" --help >/dev/null 2>&1; then
        echo "installing $package $version in $venv (about a minute)"
        python_venv "$venv" "$package==$version"
    fi
    echo "$package $version: $venv/bin/smg"
}
install_router smg 1.13.0
[ "${1:-all}" != smg ] || exit 0
install_router sglang-router 0.3.2
