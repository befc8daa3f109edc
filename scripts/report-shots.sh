#!/usr/bin/env bash
# Pictures of a report's page as Chromium draws it: wide and as on a phone, light and dark. Fails where the page says
# anything in the browser's console, asks for anything beside itself, or must be scrolled sideways; and where its latencies,
# notes and warnings are not those of the report's JSON, if that is beside it (`--format json`).
# Usage: bash scripts/report-shots.sh report.html FOLDER
#        bash scripts/report-shots.sh all      the pages that the tests of the report have made
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need_browser
shoot() {
    mkdir -p "$2"
    node scripts/report-shots.js "$(realpath "$1")" "$(realpath "$2")"
}
if [ "$1" != all ]; then
    shoot "$1" "${2:-.tools/report-shots}"
    exit
fi
for page in "${CARGO_TARGET_DIR:-target}"/tmp/pages/*.html; do
    shoot "$page" ".tools/report-shots/$(basename "$page" .html)" || failed=1
done
exit ${failed:-0}
