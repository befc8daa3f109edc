#!/usr/bin/env bash
# Brings what the build lacks, builds, and runs the demo. Flags are the demo's own.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need_build_tools
build_release
exec "${CARGO_TARGET_DIR:-target}/release/queuescope" demo "$@"
