#!/usr/bin/env bash
# Everything that must hold: format, lints, tests. Brings what a bare Debian with Rust lacks.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need_build_tools
bash scripts/router.sh
step() { echo "== $*" && "$@"; }
step cargo fmt --check
step cargo clippy --locked --all-targets -- -D warnings
step cargo test --locked
