#!/usr/bin/env bash
# What servers' spans cost the proxy's requests: the same requests through a front that takes in 20 000 requests' spans a
# minute at trace level 3 (a span a token), and through one beside which another process takes them in, so that the
# machine is as busy. Paired rounds in changing order; the p99 of the total latency, the processor time of the front, and
# of their differences the mean and its 95 % confidence interval.
#
# bash scripts/span-cost.sh [ROUNDS] [REQUESTS] [RATE]   (default: 10 rounds of 500 requests, 100 a second)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need python3 python3
need_queuescope
exec python3 -B - "$@" <<'PY'
import http.client, os, random, sys, threading, time
from scripts.paired import binary, front, interval, metric, port, start, started, traffic

rounds, requests, rate = (int(a) for a in (sys.argv[1:] + ["10", "500", "100"][len(sys.argv) - 1:]))
# 7 requests of 64 tokens a message are 511 spans; so many messages a second are 20 000 requests a minute.
TOKENS, TOGETHER = 64, 7
EVERY = 60 * TOGETHER / 20_000

# Protocol buffers by hand: what an exporter of SGLang 0.5.23 sends.
def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])

def part(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data

def attribute(key, value):
    held = part(1, value.encode()) if isinstance(value, str) else varint(3 << 3) + varint(value)
    return part(9, part(1, key.encode()) + part(2, held))

def span(trace, own, parent, name, start, end, *attributes):
    times = b"".join(varint(n << 3 | 1) + int(at).to_bytes(8, "little") for n, at in ((7, start), (8, end)))
    return part(2, part(1, trace) + part(2, own) + part(4, parent) + part(5, name.encode()) + b"\x30\x01" + times
                + b"".join(attributes))

def of_request():
    trace, rid, now = os.urandom(16), os.urandom(16).hex(), time.time_ns()
    ids = [os.urandom(8) for _ in range(9)]
    root, tokenizer, scheduler, decode = ids[0], ids[1], ids[4], ids[8]
    at = lambda ms: now - int((1000 - ms) * 1e6)
    spans = [span(trace, root, os.urandom(8), f" Req {rid[:8]}", at(0), at(900), attribute("rid", rid),
                  attribute("gen_ai.request.id", rid), attribute("gen_ai.usage.completion_tokens", TOKENS),
                  attribute("gen_ai.usage.prompt_tokens", 512), attribute("module", "sglang::request")),
             span(trace, tokenizer, root, "Tokenizer(host:3d1219c7 | pid:19945)", at(0), at(9)),
             span(trace, ids[2], tokenizer, "tokenize", at(0), at(8)),
             span(trace, ids[3], tokenizer, "api_server_dispatch", at(8), at(9)),
             span(trace, scheduler, root, "Scheduler [TP 0]  [PP 0] (host:3d1219c7 | pid:20307)", at(9), at(899),
                  attribute("tp_rank", 0), attribute("pp_rank", 0)),
             span(trace, ids[5], scheduler, "request_process", at(9), at(10)),
             span(trace, ids[6], scheduler, "prefill_waiting", at(10), at(60)),
             span(trace, ids[7], scheduler, "prefill_forward", at(60), at(90)),
             span(trace, decode, scheduler, "decode_forward", at(90), at(899))]
    event = part(11, b"\x09" + now.to_bytes(8, "little") + part(2, b"schedule"))
    spans += [span(trace, os.urandom(8), decode, "decode_loop", at(90 + 12 * n), at(102 + 12 * n),
                   attribute("decode_ct", n), event) for n in range(TOKENS)]
    random.shuffle(spans)
    return b"".join(spans)

def message():
    return part(1, part(2, b"".join(of_request() for _ in range(TOGETHER))))

# Making them takes longer than sending: a stock of them goes round, ids as they are.
stock = [message() for _ in range(400)]

def send(at, stop, sent):
    connection, due = http.client.HTTPConnection("127.0.0.1", at), time.monotonic()
    while not stop.is_set():
        connection.request("POST", "/v1/traces", random.choice(stock), {"content-type": "application/x-protobuf"})
        assert connection.getresponse().read() is not None
        sent[0] += 1
        due += EVERY
        time.sleep(max(0, due - time.monotonic()))

try:
    server = port()
    start(server, binary, "sim", "--port", str(server), "--instant")
    fronts = {}
    for name in ("front", "aside"):
        spans = port()
        fronts[name] = (*front(name, server, "--engine-traces", f"127.0.0.1:{spans}"), spans)
    at, admin, _ = fronts["front"]
    cpu, p99, sent = {"front": [], "aside": []}, {"front": [], "aside": []}, {"front": [0], "aside": [0]}
    span_cpu = []
    for turn in range(-1, rounds):
        for way in random.sample(["front", "aside"], 2):
            stop, to = threading.Event(), fronts[way]
            before, spent, count = metric(admin, "process_cpu_seconds_total"), metric(to[1], "process_cpu_seconds_total"), sent[way][0]
            sender = threading.Thread(target=send, args=(to[2], stop, sent[way]))
            sender.start()
            total = traffic(at, requests, rate, f"{way}.{turn}")
            stop.set()
            sender.join()
            time.sleep(0.5)
            used = metric(admin, "process_cpu_seconds_total") - before
            if turn >= 0:  # The first warms up.
                cpu[way].append(used / requests * 1e6)
                p99[way].append(total["p99_e2e_latency_ms"])
                if way == "aside":
                    spent = metric(to[1], "process_cpu_seconds_total") - spent
                    span_cpu.append(spent / (sent[way][0] - count) / (TOGETHER * (TOKENS + 9)) * 1e9)
    for way in ("aside", "front"):
        (c, ce), (p, pe) = interval(cpu[way]), interval(p99[way])
        print(f"spans to the {way}: {c:8.1f} ± {ce:5.1f} µs of the front's processor time a request   p99 {p:7.3f} ± {pe:.3f} ms")
    p, pe = interval([a - b for a, b in zip(p99["front"], p99["aside"])])
    print(f"front − aside: p99 {p:+.3f} ± {pe:.3f} ms")
    c, ce = interval(span_cpu)
    print(f"a span, read and put together: {c:.0f} ± {ce:.0f} ns of processor time (all of a process that does nothing else)")
    for way in ("front", "aside"):
        memory = metric(fronts[way][1], "process_resident_memory_bytes") / 1e6
        taken = metric(fronts[way][1], "queuescope_engine_trace_batches_total")
        print(f"{way}: {taken:.0f} messages of {TOGETHER * (TOKENS + 9)} spans came, {sent[way][0]} were sent; {memory:.0f} MB resident")
finally:
    for process in started:
        process.terminate()
PY
