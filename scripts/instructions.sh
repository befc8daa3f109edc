#!/usr/bin/env bash
# Instructions that the proxy takes an event and a request, counted by callgrind: the difference of two run lengths, so
# that starting and ending do not count. Steady on a busy machine, where times are not.
#
# bash scripts/instructions.sh [BINARY...]   each a built `queuescope` (default: target/release/queuescope)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need valgrind valgrind
sim=${SIM:-target/release/queuescope}
[ $# -gt 0 ] || set -- target/release/queuescope
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
server=$(port)
# A step of 25 ms: the proxy, slow under callgrind, takes each event by itself.
"$sim" sim --port "$server" --decode-step-ms 25 --decode-step-per-seq-ms 0 --incremental-streaming-output \
    --max-running-requests 64 >/dev/null 2>&1 &

# count BINARY REQUESTS EVENTS: the instructions of a proxy that serves so much.
count() {
    local binary=$1 requests=$2 events=$3 front admin
    front=$(port) admin=$(port)
    valgrind --tool=callgrind --callgrind-out-file="$folder/out" "$binary" proxy --listen "127.0.0.1:$front" \
        --admin "127.0.0.1:$admin" --upstream "http://127.0.0.1:$server" --upstream-kind server \
        --records "$folder/records.$RANDOM.csv" >"$folder/log" 2>&1 &
    local proxy=$!
    until (exec 3<>"/dev/tcp/127.0.0.1/$front") 2>/dev/null; do sleep 0.2; done
    "$sim" traffic --base-url "http://127.0.0.1:$front" --upstream-kind server --request-rate 10 --num-prompts "$requests" \
        --dataset-name random --random-input-len 20 --random-output-len "$events" --random-range-ratio 1 --seed 1 \
        --output-dir "$folder/run.$RANDOM$RANDOM" >"$folder/traffic" 2>&1
    grep -q "$requests ok" "$folder/traffic" || { cat "$folder/traffic" >&2; exit 1; }
    kill "$proxy"
    wait "$proxy" || true
    grep -oP 'Collected : \K[0-9]+' "$folder/log"
}
for binary; do
    few=$(count "$binary" 40 2)
    more=$(count "$binary" 80 2)
    long=$(count "$binary" 40 66)
    echo "$binary: $(((long - few) / 40 / 64)) instructions an event, $(((more - few) / 40)) a request of 2 events"
done
