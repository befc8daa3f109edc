#!/usr/bin/env bash
# Does the verdict tell a generator that cannot keep up from one that can? Makes RUNS runs of each kind against simulated
# servers:
#   starved: at RATE requests a second, on one processor that two busy loops share: each must be INVALID (exit 3);
#   modest: 20 requests a second, with nothing held back: each must be VALID (exit 0).
# Takes some six minutes. Usage: scripts/verdict.sh [PROGRAM] (default: target/release/queuescope), RUNS=20 RATE=20000.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:-target/release/queuescope}")
runs=${RUNS:-20}
rate=${RATE:-20000}
folder=$(mktemp -d)
started=()
end() {
    for id in "${started[@]}"; do kill "$id" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap end EXIT

# Starts a simulated server; its URL is in $url.
server() {
    # Else the URL of the one before might be read, before the new one has opened the file.
    : >"$folder/sim"
    "$program" sim --port 0 "$@" >"$folder/sim" &
    started+=($!)
    until url=$(grep -om1 'http://[^ ]*' "$folder/sim"); do sleep 0.1; done
}

# One run of the generator by a command in front; prints verdict and exit code.
run() {
    local kind=$1 rate=$2 seconds=$3 tokens=$4 code=0
    shift 4
    "$@" "$program" traffic --base-url "$url" --upstream-kind server --request-rate "$rate" --duration "$seconds" \
        --random-input-len 64 --random-output-len "$tokens" --seed "$RANDOM" --output-dir "$folder/run" --force \
        >"$folder/out" 2>/dev/null || code=$?
    grep -A1 '^verdict' "$folder/out" | sed "s/^verdict */$kind: exit $code, /"
}

server --instant
for _ in 1 2; do
    # As nice as the generator is: they take two thirds of that processor, and what else runs there is not disturbed.
    nice -n 19 taskset -c 0 bash -c 'while :; do :; done' &
    started+=($!)
done
for _ in $(seq "$runs"); do run starved "$rate" 2 1 nice -n 19 taskset -c 0; done | tee "$folder/starved"
kill "${started[@]}"
started=()

server
for _ in $(seq "$runs"); do run modest 20 3 16 env; done | tee "$folder/modest"

invalid=$(grep -c '^starved: exit 3, INVALID' "$folder/starved" || true)
valid=$(grep -c '^modest: exit 0, VALID' "$folder/modest" || true)
echo "starved: INVALID $invalid of $runs; modest: VALID $valid of $runs"
[ "$invalid" = "$runs" ] && [ "$valid" = "$runs" ]
