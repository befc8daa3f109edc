#!/usr/bin/env bash
# The live page as Chromium draws it, of a demo with traffic: wide and on a phone. Fails where the browser's console says anything, it asks
# for anything beside itself, must be scrolled sideways, has its bar below a phone's first screen, says other figures than it reads
# (all of the time, and until the first token), makes elements of a hostile model's name, or tells of a request without microseconds or
# with Markdown.
# Usage: bash scripts/live-shots.sh [FOLDER OF queuescope] [FOLDER FOR PICTURES]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need_browser
need curl curl
queuescope=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug}")/queuescope
pictures=${2:-.tools/report-shots/live}
mkdir -p "$pictures"
scratch=$(mktemp -d)
bash scripts/keep-running.sh "$queuescope" "$scratch/demo" >"$scratch/said" 2>&1 &
job=$!
trap 'kill $job 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT
live=$(word "$scratch/said" '^live page +(http[^ ]*)')
front=$(word "$scratch/said" 'front (http://[0-9.:]+)')
sleep 12
# Again and again: the page lists the last requests only.
while kill -0 $job 2>/dev/null; do
    curl -s -o "$scratch/answer" "$front/v1/completions" -H 'content-type: application/json' \
        -d '{"model":"<script>alert(1)</script><img src=x>","prompt":"a","max_tokens":4}' || true
    sleep 1
done &
node scripts/live-shots.js "$live" "$pictures"
