#!/usr/bin/env bash
# Everything that must hold: format, lints, tests. Brings what a bare Debian with Rust lacks.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need_build_tools
echo "format, lints, all tests: they build everything first, about 25 minutes from nothing on two cores" >&2
bash scripts/router.sh
need curl curl
need_prometheus
# It gives a process another wall clock.
[ -n "$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null)" ] || apt_install libfaketime
bash scripts/collector.sh
step() { echo "== $*" && "$@"; }
step cargo fmt --check
step cargo clippy --locked --all-targets -- -D warnings
step cargo test --locked
# The table of framing cases and a few random ones are in the step before.
step env DIFFERENTIAL=10000 cargo test --locked --test it differential::random
step bash scripts/report-shots.sh all
step bash scripts/live-shots.sh
step bash scripts/deploy.sh
step bash scripts/readme.sh "${CARGO_TARGET_DIR:-target}/debug"
