#!/usr/bin/env bash
# What a report of many rows costs: time and memory of reading, of the page, and of Parquet with the query of docs/REPORT.md; and what
# a prediction of so many requests does, of rows of a real GPU, on one processor.
#   scripts/report-bench.sh [ROWS]      QUEUESCOPE: the program (target/release/queuescope)
#                                       BACKEND: of the generator (sglang, whose rows have the servers' times; sglang-oai-chat: without)
# Rows are those of 300 requests of a generator through a front and a hop to a simulated server, again and again, each with ids and
# times of its own. Needs python3; the query needs duckdb
# (pip install duckdb) and is left out without it.
set -euo pipefail
cd "$(dirname "$0")/.."
rows=${1:-1000000}
program=${QUEUESCOPE:-target/release/queuescope}
folder=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$folder"' EXIT
read -r server hop front admin < <(python3 -c '
import socket
held = [socket.socket() for _ in range(4)]
for one in held: one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in held))')
"$program" sim --port "$server" --max-running-requests 8 >/dev/null 2>&1 &
"$program" proxy --listen "127.0.0.1:$front" --admin "127.0.0.1:$admin" --upstream "http://127.0.0.1:$hop" \
    --worker "hop=127.0.0.1:$hop=127.0.0.1:$server" >/dev/null 2>&1 &
for _ in {1..100}; do
    ! (exec 3<>"/dev/tcp/127.0.0.1/$front" 4<>"/dev/tcp/127.0.0.1/$server") 2>/dev/null || break
    sleep 0.1
done
"$program" traffic --base-url "http://127.0.0.1:$front" --backend "${BACKEND:-sglang}" --dataset-name random --random-input-len 320 \
    --random-output-len 40 --random-range-ratio 0.6 --num-prompts 300 --request-rate 50 --output-dir "$folder/load" >/dev/null 2>&1
mkdir "$folder/run"

# repeated FROM TO: as many rows as are asked for.
repeated() {
    python3 - "$1" "$2" "$rows" <<'PYTHON'
import csv, random, sys

source, target, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(source, newline="") as file:
    header, *base = list(csv.reader(file))
times = [i for i, name in enumerate(header) if name.endswith("_time") or name in ("queue_time_start", "queue_time_end")]
durations = {"tokenize_time", "prefill_time", "decode_time", "network_time", "return_time", "pure_queue_time"}
times = [i for i in times if header[i] not in durations]
at = {name: header.index(name) for name in ("req_id", "trace_id", "engine_id", "span_id")}
latencies = [header.index(name) for name in ("ttft", "total_latency", "tpot")]
arrival = header.index("arrival_time")
length = max(float(row[arrival]) for row in base) + 0.02
random.seed(1)
with open(target, "w", newline="") as file:
    file.write(",".join(header) + "\n")
    for number in range(count):
        row = list(base[number % len(base)])
        shift = number // len(base) * length
        for i in times:
            if row[i]:
                row[i] = f"{float(row[i]) + shift:.9f}"
        for i in latencies:
            if row[i]:
                row[i] = f"{float(row[i]) * random.uniform(0.9, 1.1):.9f}"
        row[at["req_id"]] = f"qs-bench-{number}"
        for name in ("trace_id", "engine_id"):
            row[at[name]] = f"{random.getrandbits(128):032x}"
        row[at["span_id"]] = f"{random.getrandbits(64):016x}"
        file.write(",".join(f'"{cell}"' if "," in cell else cell for cell in row) + "\n")
PYTHON
}
repeated "$folder/load/requests.csv" "$folder/run/requests.csv"
echo "$rows rows, $(du -m "$folder/run/requests.csv" | cut -f1) MB, $(nproc) processors"

measured() {
    local name=$1
    shift
    python3 - "$name" "$@" <<'PYTHON'
import resource, subprocess, sys, time

begun = time.monotonic()
subprocess.run(sys.argv[2:], check=True, stdout=subprocess.DEVNULL)
took = time.monotonic() - begun
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"{sys.argv[1]:<10} {took:6.2f} s ({used.ru_utime + used.ru_stime:.2f} s of CPU), at most {used.ru_maxrss / 1024:.0f} MB")
PYTHON
}
measured report "$program" report --no-html "$folder/run"
measured page "$program" report --html "$folder/report.html" "$folder/run"
echo "           the page has $(($(stat -c %s "$folder/report.html") / 1000)) kB"
measured parquet "$program" report --format parquet --output "$folder/rows.parquet" "$folder/run"
echo "           the file has $(($(stat -c %s "$folder/rows.parquet") / 1000000)) MB"
gzip -dc tests/data/h200/rows/random-512-128-slots16-rate12.csv.gz >"$folder/h200.csv"
repeated "$folder/h200.csv" "$folder/load.csv"
measured whatif taskset -c 0 "$program" whatif "$folder/load.csv" --set num_gpus=2
cd "$folder"
python3 - <<'PYTHON'
import time
try:
    import duckdb
except ImportError:
    print("query      left out: no duckdb")
    raise SystemExit
begun = time.monotonic()
rows = duckdb.sql("""
SELECT run, host, count(*) AS requests,
       quantile_cont(ttft, 0.99) AS ttft_p99,
       avg(pure_queue_time) AS queue_mean
FROM 'rows.parquet'
WHERE outcome = 'ok'
GROUP BY run, host
ORDER BY ttft_p99 DESC;
""").fetchall()
print(f"query      {time.monotonic() - begun:6.2f} s")
for row in rows:
    print("          ", row)
PYTHON
