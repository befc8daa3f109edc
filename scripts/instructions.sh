#!/usr/bin/env bash
# Instructions that a proxy takes an event and a request, counted by callgrind: the difference of two run lengths, so
# that starting and ending do not count. Steady on a busy machine, where times are not. Bare Pingora is counted in the
# same run, with the same client and server: what is above 1 is ours.
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
# The bench `overhead` starts itself once more to be bare Pingora.
bare=${BARE:-$(cargo bench --locked --no-run --bench overhead 2>&1 | grep -oP 'Executable.*\(\K[^)]+')} ||
    { echo "error: cargo bench --no-run --bench overhead does not build" >&2; exit 1; }
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
server=$(port)
# A step of 40 ms and few streams at once: the proxy, slow under callgrind, takes each event by itself.
"$sim" sim --port "$server" --decode-step-ms 40 --decode-step-per-seq-ms 0 --incremental-streaming-output \
    --max-running-requests 64 >/dev/null 2>&1 &

# proxy BINARY PORT: runs it under callgrind. An empty binary is bare Pingora.
proxy() {
    local front="127.0.0.1:$2" grind=(valgrind --tool=callgrind --callgrind-out-file="${OUT:-$folder/out}")
    if [ -z "$1" ]; then
        QUEUESCOPE_BARE_PINGORA="$front 127.0.0.1:$server 1" exec "${grind[@]}" "$bare"
    fi
    exec "${grind[@]}" "$1" proxy --listen "$front" --admin "127.0.0.1:$(port)" --threads 1 \
        --upstream "http://127.0.0.1:$server" --upstream-kind server --records "$folder/records.$RANDOM.csv"
}

# count BINARY REQUESTS RATE EVENTS: the instructions of a proxy that serves so much.
count() {
    local binary=$1 requests=$2 rate=$3 events=$4 front
    front=$(port)
    proxy "$binary" "$front" >"$folder/log" 2>&1 &
    local proxy=$!
    until (exec 3<>"/dev/tcp/127.0.0.1/$front") 2>/dev/null; do sleep 0.2; done
    "$sim" traffic --base-url "http://127.0.0.1:$front" --upstream-kind server --request-rate "$rate" --num-prompts "$requests" \
        --dataset-name random --random-input-len 20 --random-output-len "$events" --random-range-ratio 1 --seed 1 \
        --output-dir "$folder/run.$RANDOM$RANDOM" >"$folder/traffic" 2>&1
    grep -q "$requests ok" "$folder/traffic" || { cat "$folder/traffic" >&2; exit 1; }
    # At once: Pingora waits minutes after a SIGTERM.
    kill -INT "$proxy"
    wait "$proxy" || true
    grep -oP 'Collected : \K[0-9]+' "$folder/log"
}

# over A B: their ratio.
over() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2f", a / b }'; }
for binary in "" "$@"; do
    few=$(count "$binary" 20 10 2)
    more=$(count "$binary" 80 10 2)
    long=$(count "$binary" 20 2 130)
    event=$(((long - few) / 20 / 128)) request=$(((more - few) / 60))
    : "${bare_event:=$event}" "${bare_request:=$request}"
    echo "${binary:-bare Pingora}: $event instructions an event ($(over "$event" "$bare_event") of bare Pingora)," \
        "$request a request of 2 events ($(over "$request" "$bare_request"))"
done
