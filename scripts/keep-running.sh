#!/usr/bin/env bash
# A deployment under load that goes on until it is ended (Ctrl-C, SIGTERM), for tools that look at one as it runs: three simulated servers
# (server-2 is slow, server-3 has a larger model), a hop before each, a front; between them a real router, or the front with a limit of its
# own. The load rises and falls as in a day of four minutes, with bursts. When all is ready it writes FOLDER/targets.json, which tells
# Prometheus what to scrape (file_sd_configs), and says where what is.
#
# bash scripts/keep-running.sh QUEUESCOPE FOLDER [SMG]   the programs; SMG as scripts/router.sh installs it
set -euo pipefail
queuescope=$1 dir=$2 router=${3:-}
mkdir -p "$dir/logs"
rm -f "$dir/targets.json" "$dir/proxy.csv"

servers=() others=() loads=()
end() {
    trap - EXIT
    kill -KILL ${loads[@]+"${loads[@]}"} 2>/dev/null || true
    # The proxy first, so that it has written all its rows.
    for pid in ${others[@]+"${others[@]}"} ${servers[@]+"${servers[@]}"}; do
        kill "$pid" 2>/dev/null && wait "$pid" || true
    done
    wait
}
trap end EXIT
trap 'exit 0' INT TERM HUP

next=$((12000 + RANDOM % 15000))
# port NAME: sets the variable to a free address.
port() {
    while (exec 3<>"/dev/tcp/127.0.0.1/$next") 2>/dev/null; do next=$((next + 1)); done
    printf -v "$1" '127.0.0.1:%d' "$next"
    next=$((next + 1))
}
# begin NAME COMMAND...: its log is logs/NAME.log.
begin() {
    local name=$1
    shift
    "$@" >"$dir/logs/$name.log" 2>&1 &
}
alive() {
    local pid
    for pid in "${others[@]}" "${servers[@]}"; do
        kill -0 "$pid" 2>/dev/null || { echo "error: one of them ended: see $dir/logs" >&2 && exit 1; }
    done
}

port front && port admin && port traces
hops=() workers=() urls=() shown=
targets="{\"targets\": [\"$admin\"], \"labels\": {\"job\": \"queuescope\"}}"
while read -r model flags; do
    number=$((${#servers[@]} + 1))
    port server && port hop
    # The slow one rejects requests beyond so many waiting ones.
    # shellcheck disable=SC2086
    begin "server-$number" "$queuescope" sim --port "${server#*:}" --model "$model" $flags --tokenize-ms 2 --max-queued-requests 30 \
        --enable-trace --otlp-traces-endpoint "$traces"
    servers+=($!) workers+=(--worker "server-$number=$hop=http://$server") hops+=(--upstream "http://$hop") urls+=("http://$hop")
    shown+="    hop server-$number :${hop#*:} -> simulated SGLang http://$server ($model)"$'\n'
    targets+=", {\"targets\": [\"$server\"], \"labels\": {\"job\": \"sglang\", \"worker\": \"server-$number\"}}"
done <<'END'
demo-8b --max-running-requests 8 --prefill-tokens-per-s 8000 --decode-step-ms 15
demo-8b --max-running-requests 8 --prefill-tokens-per-s 4000 --decode-step-ms 30
demo-70b --max-running-requests 4 --prefill-tokens-per-s 4000 --decode-step-ms 30
END

# Requests that the router sends on at once, so that its queue can be seen too.
at_once=26
kind=" (the router)"
to=("${hops[@]}" --max-concurrent-requests "$at_once")
if [ -n "$router" ]; then
    port at && port metrics
    to=(--upstream "http://$at") kind=" -> router"
    targets+=", {\"targets\": [\"$metrics\"], \"labels\": {\"job\": \"router\"}}"
fi
begin proxy "$queuescope" proxy --listen "$front" --admin "$admin" "${to[@]}" "${workers[@]}" --engine-traces "$traces" \
    --records "$dir/proxy.csv" --records-rotate-mb 20 --records-keep 1 --label-headers x-tenant --drain-timeout-s 5
others=($!)
if [ -n "$router" ]; then
    begin router "$router" launch --host 127.0.0.1 --port "${at#*:}" --prometheus-host 127.0.0.1 --prometheus-port "${metrics#*:}" \
        --policy round_robin --max-concurrent-requests "$at_once" --queue-size 400 --log-level error --worker-urls "${urls[@]}"
    others+=($!)
fi
for model in demo-8b demo-70b; do
    until "$queuescope" probe "http://$front" --model "$model" --output-len 1 >"$dir/logs/probe.log" 2>&1; do
        alive
        sleep 0.3
    done
done
echo "[$targets]" >"$dir/targets.json.new"
mv "$dir/targets.json.new" "$dir/targets.json"
cat <<END
load -> front http://$front$kind ->
${shown}live page http://$admin/
metrics  http://$admin/metrics
targets  $dir/targets.json (for Prometheus' file_sd_configs)
records  $dir/proxy.csv
It goes on until Ctrl-C. A day takes four minutes; server-2 is slow.
END

# Seconds and requests a second of all kinds, from the morning (so that there is something to see at once) over noon and midnight to the next.
curve="0:7 15:8.5 15:18.7 20:19.5 20:8.9 60:11 65:10.9 65:24 70:23.8 70:10.8 120:7 180:3 215:5 215:11 220:11.6 220:5.3 240:7"
SECONDS=0
for ((day = 0; ; day++)); do
    number=0
    # Those of the day before have ended, or soon will.
    loads=(${loads[@]+"${loads[@]: -6}"})
    # The share of all, and flags. Clients of the last but one lose patience; the last has a prompt twice, which the server refuses.
    while read -r share flags; do
        number=$((number + 1))
        of_kind=$(awk -v share="$share" -v RS=' ' -F: '{printf "%s%s:%s", (NR > 1 ? "," : ""), $1, $2 * share}' <<<"$curve")
        # shellcheck disable=SC2086
        begin "load-$number" "$queuescope" traffic --base-url "http://$front" --rate-curve "$of_kind" --seed $((day * 6 + number)) \
            --request-id-prefix "demo-$day-$number" --random-range-ratio 0.3 --output-dir "$dir/load/$((day % 2))-$number" --force $flags
        loads+=($!)
        # Bash is not to tell of its end.
        disown $!
    done <<'END'
0.38 --backend sglang --model demo-8b --random-input-len 260 --random-output-len 60 --header x-tenant:search
0.36 --backend sglang-oai-chat --model demo-8b --random-input-len 200 --random-output-len 70 --header x-tenant:chat
0.14 --backend sglang-oai-chat --model demo-70b --random-input-len 300 --random-output-len 50 --header x-tenant:chat
0.08 --backend sglang --model demo-70b --random-input-len 200 --random-output-len 30 --disable-stream --header x-tenant:batch
0.03 --backend sglang-oai-chat --model demo-8b --random-output-len 400 --request-timeout-s 1
0.01 --backend sglang --model demo-8b --random-input-len 20 --extra-request-body {"input_ids":[1]}
END
    while ((SECONDS < (day + 1) * 240)); do
        alive
        sleep 1 &
        wait $! || true
    done
done
