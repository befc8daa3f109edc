#!/usr/bin/env bash
# Streamed chat through the proxy to a real SGLang, whose streams carry no timing: each row's queue time by the join with
# the server's traces, and held against the server's own log of the same requests.
#
# REALSGL=FOLDER bash scripts/real-sglang.sh [REQUESTS] [RATE]   (default: 60 requests, 6 a second)
#
# FOLDER holds `venv` (SGLang with its extra `tracing`: pip install 'sglang[tracing]') and `model`. A GPU is used if SGLang
# finds one; DEVICE=cpu takes a build that runs without. QUEUESCOPE names a built binary. Everything that was written stays
# in OUT (default: results/real-sglang).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need python3 python3
: "${REALSGL:?set it to the folder that holds venv and model}"
if ! "$REALSGL/venv/bin/python" -c 'import opentelemetry.sdk, opentelemetry.exporter.otlp.proto.grpc' 2>/dev/null; then
    echo "error: $REALSGL/venv lacks SGLang's extra \`tracing\`, without which it sends no spans:" >&2
    echo "  $REALSGL/venv/bin/pip install opentelemetry-sdk opentelemetry-exporter-otlp" >&2
    exit 1
fi
need_queuescope
exec python3 -B - "$@" <<'PY'
import csv, glob, json, os, shlex, signal, subprocess, sys
from scripts.started import Started

requests, rate = (sys.argv[1:] + ["60", "6"][len(sys.argv) - 1:])[:2]
binary, real = os.environ["QUEUESCOPE"], os.path.abspath(os.environ["REALSGL"])
out = os.environ.get("OUT", "results/real-sglang")
started = Started(out)
port, start, ready = started.port, started.start, started.ready
os.makedirs(f"{out}/server-log")

def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]

try:
    server, front, admin, traces = port(), port(), port(), port()
    env = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    env.pop("LD_LIBRARY_PATH", None)
    flags = []
    if os.environ.get("DEVICE") == "cpu":
        env.update(SGLANG_USE_CPU_ENGINE="1", OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        flags = ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native",
                 "--max-total-tokens", "16384", "--context-length", "2048", "--mem-fraction-static", "0.1"]
    proxy = start("proxy", [
        binary, "proxy", "--listen", f"127.0.0.1:{front}", "--upstream", f"http://127.0.0.1:{server}",
        "--upstream-kind", "server", "--admin", f"127.0.0.1:{admin}", "--records", f"{out}/records.csv",
        "--engine-traces", f"127.0.0.1:{traces}"])
    # It needs no --enable-metrics: that is for the log which the rows are held against.
    engine = start("sglang", [
        f"{real}/venv/bin/python", "-m", "sglang.launch_server", "--model-path", f"{real}/model", "--served-model-name",
        "tiny-llama", "--host", "127.0.0.1", "--port", str(server), "--max-running-requests", "4",
        "--enable-trace", "--otlp-traces-endpoint", f"127.0.0.1:{traces}", "--enable-metrics",
        "--export-metrics-to-file", "--export-metrics-to-file-dir", f"{out}/server-log", *flags], env)
    ready(proxy, f"http://127.0.0.1:{admin}/healthz", 20, "proxy")
    ready(engine, f"http://127.0.0.1:{server}/model_info", 600, "sglang")
    # The first requests of a server are slow.
    traffic = [binary, "traffic", "--backend", "sglang-oai-chat", "--base-url", f"http://127.0.0.1:{front}",
               "--upstream-kind", "server", "--num-prompts", requests, "--request-rate", rate, "--warmup-requests", "2",
               "--random-input-len", "24", "--random-output-len", "24", "--max-failed", "0",
               "--request-id-prefix", "chat", "--output-dir", f"{out}/traffic"]
    print("$", shlex.join(traffic), flush=True)
    subprocess.run(traffic, check=True)
    # Rows that wait for spans are written at the latest when the proxy ends.
    proxy.send_signal(signal.SIGTERM)
    proxy.wait(120)
    log = {}
    for path in glob.glob(f"{out}/server-log/*.log"):
        for line in open(path):
            told = json.loads(line)
            if "queue_time" in told:
                log[told["id"]] = told
    rows = [row for row in csv.DictReader(open(f"{out}/records.csv")) if row["req_id"].startswith("chat-")
            and "warmup" not in row["req_id"]]
    joined = [row for row in rows if row["timing_source"] == "trace" and row["pure_queue_time"]]
    both = [(float(row["pure_queue_time"]), log[row["engine_id"]]) for row in joined if row["engine_id"] in log]
    apart = [abs(waited - told["queue_time"]) for waited, told in both]
    tokens = sum(int(row["output_tokens_from_trace"] or -1) == log[row["engine_id"]]["completion_tokens"]
                 for row in joined if row["engine_id"] in log)
    print(f"streamed chat rows: {len(rows)}")
    print(f"  timing_source = trace, with a queue time: {len(joined)}")
    print(f"  of these with a queue time in the server's own log: {len(both)}; token counts the same: {tokens}")
    if both:
        waits = [waited * 1e3 for waited, _ in both]
        print(f"  queue time: median {quantile(waits, .5):.1f} ms, 90 % {quantile(waits, .9):.1f}, most {max(waits):.1f}")
        print(f"  apart from the log's queue_time: median {quantile(apart, .5) * 1e6:.1f} µs, most {max(apart) * 1e6:.1f} µs")
        print("  some rows (req_id, queue time by the trace, by the log, ms):")
        for row in joined[:: max(1, len(joined) // 6)][:6]:
            told = log.get(row["engine_id"], {}).get("queue_time")
            told = "-" if told is None else f"{told * 1e3:.3f}"
            print(f"    {row['req_id']:8} {float(row['pure_queue_time']) * 1e3:9.3f} {told:>9}")
    else:
        print(f"  see {out}/proxy.log and {out}/sglang.log")
    # Their order of trust and the tolerance: 1 ms.
    right = len(rows) == int(requests) == len(both) and max(apart, default=1) < 1e-3
    sys.exit(0 if right else 1)
finally:
    started.end()
PY
