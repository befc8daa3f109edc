#!/usr/bin/env bash
# Does a request wait in the router or in the server? The same 200 streamed requests, more than four slots can serve:
# held back by smg 1.13.0 (--max-concurrent-requests 4), then by the server (4 running requests), then refused by
# sglang-router 0.3.2, which cannot hold them. Rows go to results/router-queue/DATE-TIME/.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need_build_tools
bash scripts/router.sh
build_release
queuescope=target/release/queuescope
port=${PORT:-31000}
sim=127.0.0.1:$port router=127.0.0.1:$((port + 1)) hop=127.0.0.1:$((port + 2)) front=127.0.0.1:$((port + 3))
out=results/router-queue/$(date -u +%Y%m%dT%H%M%SZ)
mkdir -p "$out"
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

$queuescope sim --port "$port" --max-running-requests 4 >/dev/null &
$queuescope proxy --listen $front --admin 127.0.0.1:0 --upstream $router --worker w0=$hop=$sim \
    --records $out/records.csv 2>$out/proxy.log &

run() {
    local name=$1 command=.tools/$2/bin/smg
    shift 2
    echo
    echo "== $name: smg launch $*"
    $command launch --host 127.0.0.1 --port $((port + 1)) --prometheus-port $((port + 4)) --policy round_robin \
        --worker-urls http://$hop "$@" >$out/$name.router.log 2>&1 &
    local pid=$! tries=0
    until $queuescope probe http://$front --output-len 1 >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { echo "error: the router does not serve; see $out/$name.router.log" >&2; exit 1; }
        sleep 0.2
    done
    # 0.3.2 refuses: some failed requests are the point.
    $queuescope traffic --base-url http://$front --request-rate 60 --num-prompts 200 --random-input-len 16 \
        --random-output-len 16 --output-dir $out/$name 2>/dev/null |
        grep -E '^(200 requests|ms, |router|queue|server queue|prefill|decode|Of )|rejected|spent|^\(' || true
    kill $pid && wait $pid 2>/dev/null || true
}
run limit-in-the-router smg-1.13.0 --max-concurrent-requests 4 --queue-size 1000 --queue-timeout-secs 60
run limit-in-the-server smg-1.13.0 --max-concurrent-requests 10000
run refused-by-0.3.2 sglang-router-0.3.2 --max-concurrent-requests 4 --queue-size 1000 --queue-timeout-secs 60
echo
echo "rows: $out/*/requests.csv (the client's), $out/records.csv (the proxy's)"
