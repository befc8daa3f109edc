#!/usr/bin/env bash
# Something to look at: a demo that keeps running (with a real router, where it can be had), a real Prometheus with our
# rules beside it, and Grafana with our dashboards where it is installed. Ctrl-C ends all of it. Data is there seconds after
# the build; the first build takes 5 to 7 minutes on two cores.
#
# bash scripts/observe.sh [FOLDER]   the folder with `queuescope`; without it, it is built
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
bin=${1:-${CARGO_TARGET_DIR:-target}/release}
[ $# -gt 0 ] || need_build_tools
need_prometheus
router=.tools/smg-1.13.0/bin/smg
[ -x "$router" ] || bash scripts/router.sh smg >&2 || echo "no router: the front plays its part" >&2
[ $# -gt 0 ] || build_release

here=$PWD
dir=$here/results/observe
mkdir -p "$dir"
rm -rf "$dir/prometheus" "$dir/targets.json"
pids=()
end() {
    trap - EXIT
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

free_port() {
    local port=$1
    while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo "$port"
}
# wait_for WHAT PID COMMAND...: until the command succeeds; a minute at most.
wait_for() {
    local what=$1 pid=$2
    shift 2
    for _ in $(seq 300); do
        "$@" 2>/dev/null && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.2
    done
    echo "error: $what did not start: see $dir" >&2
    exit 1
}
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }

[ -x "$router" ] || router=
bash scripts/keep-running.sh "$(realpath "$bin")/queuescope" "$dir" "$router" >"$dir/demo.txt" 2>"$dir/demo.log" &
pids+=($!)
wait_for "the demo" $! test -s "$dir/targets.json"

port=$(free_port "${PROMETHEUS_PORT:-9090}")
cat >"$dir/prometheus.yml" <<END
global: {scrape_interval: 2s, evaluation_interval: 5s}
rule_files: ['$here/deploy/prometheus/recording-rules.yml', '$here/deploy/prometheus/alert-rules.yml']
scrape_configs:
  - job_name: demo
    file_sd_configs: [{files: ['$dir/targets.json']}]
END
prometheus --config.file="$dir/prometheus.yml" --storage.tsdb.path="$dir/prometheus" --storage.tsdb.retention.time=1d \
    --web.listen-address="127.0.0.1:$port" 2>"$dir/prometheus.log" &
pids+=($!)
wait_for Prometheus $! listens "$port"

grafana=
for command in grafana grafana-server; do
    command -v "$command" >/dev/null 2>&1 || continue
    grafana=$(free_port "${GRAFANA_PORT:-3000}")
    [ "$command" = grafana-server ] && command=(grafana-server) || command=(grafana server)
    mkdir -p "$dir/grafana"
    export QUEUESCOPE_DASHBOARDS=$here/grafana/dashboards QUEUESCOPE_PROMETHEUS=http://127.0.0.1:$port
    export QUEUESCOPE_SCRAPE_INTERVAL=2s GF_PATHS_PROVISIONING=$here/grafana/provisioning GF_PATHS_DATA=$dir/grafana
    export GF_PATHS_LOGS=$dir/grafana GF_SERVER_HTTP_ADDR=127.0.0.1 GF_SERVER_HTTP_PORT=$grafana
    export GF_AUTH_ANONYMOUS_ENABLED=true GF_AUTH_ANONYMOUS_ORG_ROLE=Editor GF_ANALYTICS_REPORTING_ENABLED=false
    "${command[@]}" --homepath "${GRAFANA_HOME:-/usr/share/grafana}" >"$dir/grafana.log" 2>&1 &
    pids+=($!)
    wait_for Grafana $! listens "$grafana"
    break
done

cat "$dir/demo.txt"
shown="not installed here: import grafana/dashboards/*.json into yours (docs/DASHBOARDS.md)"
[ -z "$grafana" ] || shown="http://127.0.0.1:$grafana/dashboards (folder queuescope)"
ui=http://127.0.0.1:$port
cat <<END

Prometheus  $ui/classic/graph   rules $ui/rules   alerts $ui/alerts
Grafana     $shown

Queries to try (the first minute has little to show):
  the wait for the first token, p95    histogram_quantile(0.95, sum by (le) (rate(gen_ai_server_time_to_first_token_seconds_bucket[1m])))
  where the time goes, by stage        stage:queuescope_stage_duration_seconds:share5m
  router or server: who queues         stage:queuescope_stage_duration_seconds:p95_5m{stage=~"router_queue|server_queue"}
  queue by server, SGLang's own word   sglang:num_queue_reqs
Ctrl-C ends all of it; files are in $dir
END
# Whichever ends first ends all.
wait -n "${pids[@]}" || true
echo "one of them ended: see $dir" >&2
exit 1
