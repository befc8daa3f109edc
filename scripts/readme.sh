#!/usr/bin/env bash
# Runs the commands of README, of DEPLOY.md's "Other arrangements" and of SIMULATOR.md's pair as they are there, each page's one after
# another in one shell, looks at what they have left, and compares README's samples with what they print. In place of the three scripts of
# "Start here" the demo and observe.sh run with the binary that is there; CI runs test.sh by itself.
#
# bash scripts/readme.sh [FOLDER]   the folder with `queuescope` (default: target/release)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need python3 python3
need openssl openssl
need curl curl
need_prometheus
bin=$(realpath "${1:-target/release}")
checkout=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bash scripts/router.sh
mkdir "$scratch/scripts"
ln -s "$checkout/.tools" "$scratch/.tools"
cp scripts/router.sh scripts/needs.sh "$scratch/scripts/"
# blocks FILE [HEADING]: the `sh` blocks of a page, or of one of its sections.
blocks() {
    python3 - "$@" <<'END'
import re, sys
text = open(sys.argv[1]).read()
if len(sys.argv) > 2:
    text = re.search(rf"^## {re.escape(sys.argv[2])}$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
found = [block for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) if "scripts/test.sh" not in block]
assert found, "no commands"
print("".join(found))
END
}
# run NAME: the commands that come, in a shell that ends with the first that fails, and the jobs that they leave.
run() {
    echo "== $1"
    {
        echo "trap 'kill \$(jobs -p) 2>/dev/null || true; wait' EXIT"
        # 3: the generator was late, as all of them share this machine.
        # What a command prints is kept by its name, of several the last.
        echo "printed=$scratch"
        echo 'queuescope() { [ $BASHPID = $$ ] || exec queuescope "$@"; command queuescope "$@" | tee "$printed/$1.txt" || [ $? = 3 ]; }'
        # The path is that of a release build, which need not be there.
        grep -v '^export PATH='
    } >"$scratch/$1.sh"
    (cd "$scratch" && HOME=$scratch PATH=$bin:$PATH exec bash -euo pipefail "$1.sh") >"$scratch/$1.out" 2>&1 </dev/null ||
        { tail -30 "$scratch/$1.out" && echo "error: a command of $1 failed" >&2 && exit 1; }
}
# rows FILE COUNT COLUMN...: so many rows went well, all with these columns.
rows() {
    python3 - "$scratch/results/$@" <<'END'
import csv, sys
path, count, columns = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rows = [row for row in csv.DictReader(open(path)) if row["outcome"] == "ok"]
assert len(rows) >= count, f"{path}: {len(rows)} rows went well, not {count}"
for column in columns:
    empty = [row["req_id"] for row in rows if not row[column]]
    assert not empty, f"{path}: {column} is empty in {len(empty)} of {len(rows)} rows"
print(f"{path.rsplit('/results/', 1)[1]}: {len(rows)} rows with {', '.join(columns)}")
END
}

# sample COMMAND: README's sample of it has the words of its last run.
sample() { python3 scripts/samples.py README.md "queuescope $1" "$scratch/$1.txt"; }
# shown COMMAND: it prints what README's sample has. Findings hang on how busy this machine is, so a difference must show twice;
# runs that are INVALID (it was too busy) are not compared.
shown() {
    for try in first second; do
        echo "queuescope $1" | run "$1"
        if grep -q INVALID "$scratch/$1.txt"; then
            echo "$1: a run is INVALID, so its sample is not looked at" >&2
            return
        fi
        ! sample "$1" || return 0
        echo "$1: that was the $try try of two" >&2
    done
    exit 1
}

shown demo
blocks README.md | run readme
rows records.csv 102 host queue_time_in_router pure_queue_time decode_time
# The remote hop served half of them, and the front has its stamps.
rows hop.csv 50 host pure_queue_time
[ "$(grep -c 127.0.0.1:18400 "$scratch/results/records.csv")" -ge 50 ]
[ -z "$(find "$scratch" -iname '*secret*')" ]
rows traffic/latest/requests.csv 100 pure_queue_time schedule_lag
grep -q "100 ok" "$scratch/traffic.txt"
sample probe
rm -r "$scratch/results"
blocks docs/DEPLOY.md "Other arrangements" | run deploy
rows node.csv 40 host pure_queue_time
rows front.csv 1 host queue_time_in_router pure_queue_time hop_clock_offset
rows hop.csv 1 pure_queue_time
rows traffic/latest/requests.csv 40 pure_queue_time
rm -r "$scratch/results"
blocks docs/SIMULATOR.md "Prefill and decode on two servers" | run pair
rows pair.csv 40 host prefill_host pure_queue_time kv_transfer_time decode_queue_time

shown routing

# observe.sh: Prometheus has the demo's figures, and nothing is left when it ends.
echo "== observe.sh"
PROMETHEUS_PORT=19090 bash scripts/observe.sh "$bin" >"$scratch/observe.out" 2>&1 &
observe=$!
trap 'kill $observe 2>/dev/null || true; wait; rm -rf "$scratch"' EXIT
prometheus=$(word "$scratch/observe.out" '^Prometheus +(http://[^/]*)/')
word "$scratch/observe.out" '(^Ctrl-C ends all of it)' >/dev/null
query='sum by (stage) (stage:queuescope_stage_duration_seconds:share5m) > 0'
seen=
for _ in $(seq 180); do
    kill -0 $observe
    curl -sf "$prometheus/api/v1/query" --data-urlencode "query=$query" | grep -q router_queue.*server_queue && seen=1 && break
    sleep 1
done
[ "$seen" ] || { echo "observe.sh: Prometheus has no figures of both queues after 3 minutes" >&2; exit 1; }
kill $observe
status=0
wait $observe || status=$?
[ $status = 143 ]
! curl -s "$prometheus" >"$scratch/observe.html"
echo "readme: its commands do what it says"
