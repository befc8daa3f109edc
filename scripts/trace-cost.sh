#!/usr/bin/env bash
# What tracing costs: the same requests through a front without traces, with all traces going to a real collector (rotel),
# and with all going to one that takes connections and never answers. Paired rounds in changing order; of each round the
# processor time of the proxy a request and the p99 of the total latency, and of their differences to the front without
# traces the mean and its 95 % confidence interval.
#
# bash scripts/trace-cost.sh [ROUNDS] [REQUESTS] [RATE]   (default: 15 rounds of 1000 requests, 250 a second)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need python3 python3
bash scripts/collector.sh >&2
need_queuescope
exec python3 -B - "$@" <<'PY'
import random, socket, sys, time
from scripts.paired import binary, front, interval, metric, port, start, started, traffic

rounds, requests, rate = (int(a) for a in (sys.argv[1:] + ["15", "1000", "250"][len(sys.argv) - 1:]))
silent = socket.socket()
# Connections wait in the kernel: nobody ever reads them.
silent.bind(("127.0.0.1", 0))
silent.listen(64)

try:
    server, grpc, http = port(), port(), port()
    start(server, binary, "sim", "--port", str(server), "--instant")
    start(grpc, ".tools/rotel/rotel-agent", "start", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
          "--otlp-http-endpoint", f"127.0.0.1:{http}", "--exporter", "blackhole")
    ways = {"off": None, "on": f"http://127.0.0.1:{grpc}", "dead": f"http://127.0.0.1:{silent.getsockname()[1]}"}
    fronts = {}
    for way, collector in ways.items():
        flags = ["--otlp-endpoint", collector, "--otlp-protocol", "grpc"] if collector else []
        fronts[way] = front(way, server, *flags)
    cpu, p99 = {way: [] for way in ways}, {way: [] for way in ways}
    for turn in range(-1, rounds):
        for way in random.sample(list(ways), len(ways)):
            at, admin = fronts[way]
            before = metric(admin, "process_cpu_seconds_total")
            total = traffic(at, requests, rate, f"{way}.{turn}")
            # What waited is sent.
            time.sleep(1.5)
            used = metric(admin, "process_cpu_seconds_total") - before
            if turn >= 0:  # The first warms up.
                cpu[way].append(used / requests * 1e6)
                p99[way].append(total["p99_e2e_latency_ms"])
    for way in ways:
        (c, ce), (p, pe) = interval(cpu[way]), interval(p99[way])
        print(f"{way:5} {c:8.1f} ± {ce:5.1f} µs of processor a request   p99 {p:7.3f} ± {pe:.3f} ms")
    for way in ("on", "dead"):
        (c, ce), (p, pe) = (interval([a - b for a, b in zip(of[way], of["off"])]) for of in (cpu, p99))
        print(f"{way:5} − off: {c:+.1f} ± {ce:.1f} µs a request, p99 {p:+.3f} ± {pe:.3f} ms")
    for way in ("on", "dead"):
        admin = fronts[way][1]
        took, lost = (metric(admin, f"queuescope_traces_{what}_total") for what in ("exported", "dropped"))
        memory = metric(admin, "process_resident_memory_bytes") / 1e6
        print(f"{way:5} {took:.0f} traces exported, {lost:.0f} lost and counted; {memory:.0f} MB resident")
finally:
    for process in started:
        process.terminate()
PY
