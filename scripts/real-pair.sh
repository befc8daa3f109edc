#!/usr/bin/env bash
# Streams through the proxy and smg 1.13.0 to a real pair of SGLang, one server that prefills and one that decodes, on CPU:
# chat, then /generate. Each request has one row that names both servers; its stages add up, and its three waits are held
# against the spans as the servers sent them and against each server's own log.
#
# REALSGL=FOLDER bash scripts/real-pair.sh [REQUESTS] [RATE]   (default: 24 requests of each, 60 a second)
#
# FOLDER holds `venv` and `model`; docs/DISAGGREGATED.md says what a pair without a GPU needs there. SIM=1 starts simulated
# servers instead; `venv` then needs opentelemetry-proto alone. QUEUESCOPE names a built binary. Everything that was written
# stays in OUT (default: results/real-pair).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
: "${REALSGL:?set it to the folder that holds venv and model}"
has() { "$REALSGL/venv/bin/python" -c "$1" 2>/dev/null; }
if ! has 'import opentelemetry.proto' || { [ -z "${SIM:-}" ] && ! has 'import opentelemetry.exporter.otlp.proto.grpc'; }; then
    echo "error: $REALSGL/venv lacks SGLang's extra \`tracing\`, without which it sends no spans:" >&2
    echo "  $REALSGL/venv/bin/pip install opentelemetry-sdk opentelemetry-exporter-otlp" >&2
    exit 1
fi
if [ -z "${SIM:-}" ] && ! has 'import mooncake.engine'; then
    echo "error: $REALSGL/venv cannot transfer KV caches:" >&2
    echo "  apt-get install libibverbs1 libnl-3-200 libnl-route-3-200" >&2
    echo "  $REALSGL/venv/bin/pip install mooncake-transfer-engine-non-cuda==0.3.13.post1" >&2
    exit 1
fi
# It makes prefill of SGLang 0.5.23 pin memory and record an event, for which it needs CUDA.
unpatched=$(grep -l 'supports_host_tensor_indices = True' \
    "$REALSGL"/venv/lib/python*/site-packages/sglang/srt/disaggregation/mooncake/conn.py 2>/dev/null || true)
if [ -z "${SIM:-}" ] && [ -n "$unpatched" ]; then
    echo "error: this SGLang's prefill server needs CUDA for a transfer; without it, change one line:" >&2
    echo "  sed -i 's/supports_host_tensor_indices = True/supports_host_tensor_indices = False/' $unpatched" >&2
    exit 1
fi
bash scripts/router.sh smg
need_queuescope
exec "$REALSGL/venv/bin/python" -B - "$@" <<'PY'
import collections, csv, glob, gzip, http.server, json, os, shlex, signal, statistics, subprocess, sys, threading, time
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from scripts.started import Started

requests, rate = (sys.argv[1:] + ["24", "60"][len(sys.argv) - 1:])[:2]
binary, real, simulated = os.environ["QUEUESCOPE"], os.path.abspath(os.environ["REALSGL"]), os.environ.get("SIM")
out = os.environ.get("OUT", "results/real-pair")
started = Started(out)
port, start, ready = started.port, started.start, started.ready

# What each source calls the three waits.
WAITS = [  # name, column of a row, span, whose log has it as `queue_time`
    ("decode memory", "decode_bootstrap_time", "decode_bootstrap", None),
    ("prefill queue", "prefill_queue_time", "prefill_waiting", "prefill"),
    ("decode slot", "decode_queue_time", "decode_waiting", "decode"),
]
LOADS = {"chat": "sglang-oai-chat", "generate": "sglang"}
STAGES = ["queue_time_in_router", "network_time", "tokenize_time", "decode_bootstrap_time", "prefill_queue_time", "prefill_time",
          "kv_transfer_time", "decode_queue_time", "return_time", "router_hold_time", "router_return_time", "decode_time"]

# The spans of each trace, seconds by name: the proxy forwards what it got as it came.
spans = collections.defaultdict(dict)

class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                spans[span.trace_id.hex()][span.name] = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

def server(role):
    logs = ["--enable-metrics", "--export-metrics-to-file", "--export-metrics-to-file-dir", f"{out}/{role}-log",
            "--enable-trace", "--otlp-traces-endpoint", f"127.0.0.1:{traces}"]
    pair = ["--host", "127.0.0.1", "--port", str(servers[role]), "--disaggregation-mode", role,
            "--disaggregation-bootstrap-port", str(bootstrap), "--max-running-requests", "4"]
    os.makedirs(f"{out}/{role}-log")
    if simulated:
        logs.remove("--enable-metrics")
        return start(role, [binary, "sim", *pair, *logs])
    more = ["--disable-radix-cache"] if role == "prefill" else ["--disaggregation-decode-retraction-backup", "none"]
    env = dict(os.environ, SGLANG_USE_CPU_ENGINE="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1",
               TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", MC_FORCE_TCP="1", SGLANG_LOCAL_IP_NIC="",
               SGLANG_HOST_IP="127.0.0.1")
    return start(role, [
        f"{real}/venv/bin/python", "-m", "sglang.launch_server", "--model-path", f"{real}/model", "--served-model-name",
        "tiny-llama", *pair, "--disaggregation-transfer-backend", "mooncake_tcp", "--page-size", "1", *more, *logs,
        "--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--max-total-tokens", "16384",
        "--context-length", "2048", "--mem-fraction-static", "0.1"], env)

def logged(role):
    """What a server's log says of each room."""
    found = {}
    for path in glob.glob(f"{out}/{role}-log/*.log"):
        for line in open(path):
            told = json.loads(line)
            sent = told["request_parameters"]
            sent = json.loads(sent) if isinstance(sent, str) else sent
            found[str(sent.get("bootstrap_room"))] = told
    return found

def seconds(row, column):
    return float(row[column]) if row[column] else None

def held_against(rows, log):
    """Prints the table of waits by source; the most that one is apart from its row, and how many were compared."""
    most, compared = 0.0, 0
    print(f"{'median, ms':16}{'rows':>10}{'spans':>10}{'logs':>10}   most apart from spans, from logs")
    for name, column, span, whose in WAITS:
        told = {"rows": [], "spans": [], "logs": []}
        apart = {"spans": [], "logs": []}
        for row in rows:
            waited, room = seconds(row, column), row["bootstrap_room"]
            by = {"spans": spans[row["trace_id"]].get(span),
                  "logs": log[whose].get(room, {}).get("queue_time") if whose else None}
            if waited is not None:
                told["rows"].append(waited)
            for source, value in by.items():
                if value is not None:
                    told[source].append(value)
                    if waited is not None:
                        apart[source].append(abs(waited - value))
        cells = [f"{statistics.median(values) * 1e3:10.3f}" if values else f"{'-':>10}" for values in told.values()]
        far = [f"{max(values) * 1e3:.4f}" if values else "-" for values in apart.values()]
        print(f"{name:16}{''.join(cells)}   {far[0]}, {far[1]}")
        most = max([most, *apart["spans"], *apart["logs"]])
        compared += len(apart["spans"]) + len(apart["logs"])
    return most, compared

def parts(row):
    """The stages of a row, seconds, in order; what it lacks is left out."""
    times = {stage: seconds(row, stage) for stage in STAGES}
    return {stage: time for stage, time in times.items() if time is not None}

def check(name, rows, log):
    hosts = {(row["prefill_host"], row["host"]) for row in rows}
    wanted = {tuple(f"127.0.0.1:{servers[role]}" for role in ["prefill", "decode"])}
    off = [abs(sum(parts(row).values()) - float(row["total_latency"])) for row in rows]
    ok, sources = sum(row["outcome"] == "ok" for row in rows), sorted({row["timing_source"] for row in rows})
    waits = [(seconds(row, "pure_queue_time"), [seconds(row, column) for _, column, _, _ in WAITS]) for row in rows]
    ids, rooms = {row["req_id"] for row in rows}, {row["bootstrap_room"] for row in rows}
    print(f"\n{name}: {requests} requests, {len(rows)} rows, {ok} ok, {len(rooms)} rooms; timing_source: {', '.join(sources)}")
    print(f"servers that prefilled and decoded: {sorted(hosts)}")
    print(f"sum of the stages and total_latency are apart by {max(off, default=0) * 1e6:.1f} µs at most")
    most, compared = held_against(rows, log)
    print("median of each stage, ms:")
    for stage in [*STAGES, "total_latency"]:
        values = [value for row in rows if (value := {**row, **parts(row)}[stage]) not in (None, "")]
        if values:
            print(f"  {stage:22}{statistics.median(map(float, values)) * 1e3:10.3f}")
    count = int(requests)
    faults = {
        "a request has no row of its own, or one too many": not len(rows) == len(ids) == len(rooms) == count,
        "a request did not go well": ok != count,
        "a server is not named": hosts != wanted,
        "stages do not add up to the total": max(off, default=1) > 1e-6,
        "pure_queue_time is not the sum of the three waits": any(
            None in [total, *three] or abs(total - sum(three)) > 1e-6 for total, three in waits),
        "sources do not agree": any(row["inconsistency"] for row in rows),
        "a wait is not told by the spans or by the log": compared != 5 * count,
        "a wait is more than 1 ms apart": most > 1e-3,
    }
    return [f"{name}: {fault}" for fault, is_so in faults.items() if is_so]

try:
    servers, hops = ({role: port() for role in ["prefill", "decode"]} for _ in range(2))
    front, admin, traces, collector, router, metrics, bootstrap = (port() for _ in range(7))
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", collector), Collector)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    with open(f"{out}/proxy.toml", "w") as file:
        for role in servers:
            file.write(f'[[worker]]\nname = "{role}-1"\nlisten = "127.0.0.1:{hops[role]}"\n'
                       f'upstream = "http://127.0.0.1:{servers[role]}"\nrole = "{role}"\n\n')
        file.write(f'[engine.traces]\nlisten = "127.0.0.1:{traces}"\n'
                   f'forward_to = "http://127.0.0.1:{collector}"\nforward_protocol = "http/protobuf"\n')
    proxy = start("proxy", [
        binary, "proxy", "--config", f"{out}/proxy.toml", "--listen", f"127.0.0.1:{front}",
        "--upstream", f"http://127.0.0.1:{router}", "--admin", f"127.0.0.1:{admin}", "--records", f"{out}/records.csv"])
    ready(proxy, f"http://127.0.0.1:{admin}/healthz", 20, "proxy")
    engines = {role: server(role) for role in servers}
    for role, engine in engines.items():
        ready(engine, f"http://127.0.0.1:{servers[role]}/health", 600, role)
    smg = start("smg", [
        ".tools/smg-1.13.0/bin/smg", "launch", "--host", "127.0.0.1", "--port", str(router), "--prometheus-port", str(metrics),
        "--prometheus-host", "127.0.0.1", "--policy", "round_robin", "--pd-disaggregation",
        "--prefill", f"http://127.0.0.1:{hops['prefill']}", str(bootstrap), "--decode", f"http://127.0.0.1:{hops['decode']}"])
    ready(smg, f"http://127.0.0.1:{router}/readiness", 120, "smg")
    for name, backend in LOADS.items():
        # The first requests of a pair are slow.
        traffic = [binary, "traffic", "--backend", backend, "--base-url", f"http://127.0.0.1:{front}",
                   "--num-prompts", requests, "--request-rate", rate, "--warmup-requests", "2", "--random-input-len", "24",
                   "--random-output-len", "24", "--max-failed", "0", "--request-timeout-s", "300",
                   "--request-id-prefix", name, "--output-dir", f"{out}/{name}"]
        print("$", shlex.join(traffic), flush=True)
        with open(f"{out}/{name}.log", "w") as log:
            sent = subprocess.run(traffic, timeout=900, stdout=log)
        # 3: the machine was too busy to send on time, which changes no row.
        if sent.returncode not in (0, 3):
            sys.exit(f"error: traffic ended with {sent.returncode}; see {out}/{name}.log")
    # Spans come twice a second; rows that wait for them are written at the latest when the proxy ends.
    time.sleep(2)
    proxy.send_signal(signal.SIGTERM)
    proxy.wait(120)
    everything = list(csv.DictReader(open(f"{out}/records.csv")))
    log, faults, count = {role: logged(role) for role in servers}, [], 0
    for name in LOADS:
        rows = [row for row in everything if row["req_id"].startswith(f"{name}-") and "warmup" not in row["req_id"]]
        faults += check(name, rows, log)
        count += len(rows)
    warmups = sum("warmup" in row["req_id"] for row in everything)
    print(f"\nrows in all: {len(everything)}, {warmups} of them of warm-ups")
    if len(everything) != count + warmups:
        faults.append("there are rows of no request")
    for fault in faults:
        print(f"WRONG: {fault}; see {out}")
    sys.exit(1 if faults else 0)
finally:
    started.end()
PY
