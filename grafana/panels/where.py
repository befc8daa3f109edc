"""Where requests wait."""

from .kinds import cells, figure, heading, heatmap, lines, mean, quantile, total

UID = "queuescope-where"
TITLE = "queuescope: where requests wait"
ABOUT = "How long requests wait for their first token, and in which stage: router queue, network, server queue, prefill."
VARIABLES = [
    (
        "model",
        "Model",
        "gen_ai_server_request_duration_seconds_count",
        "gen_ai_request_model",
        "TTFT, durations and time per token. Stages do not know the model: choose its workers.",
    ),
    ("worker", "Worker", "queuescope_stage_duration_seconds_count", "worker", "Requests, stages and gaps. Not TTFT, nor what is under way."),
    ("endpoint", "Endpoint", "queuescope_requests_total", "endpoint", "Requests, TTFT, durations. Not stages."),
    ("front", "Front", "queuescope_in_flight", "instance", "All but where requests are now."),
]

TTFT = "gen_ai_server_time_to_first_token_seconds"
TPOT = "gen_ai_server_time_per_output_token_seconds"
DURATION = "gen_ai_server_request_duration_seconds"
STAGE = "queuescope_stage_duration_seconds"
GAPS = "queuescope_inter_token_seconds"
FRONT = 'instance=~"$front"'
ASKED = 'gen_ai_request_model=~"$model", http_route=~"$endpoint", ' + FRONT
WORKER = 'worker=~"$worker", ' + FRONT
ENDED = 'endpoint=~"$endpoint", ' + WORKER
COLORS = {
    "proxy": "#705da0",
    "router_queue": "orange",
    "server": "#8e8e8e",
    "network": "#a16a3b",
    "tokenize": "super-light-blue",
    "decode_memory": "dark-red",
    "prefill_queue": "light-red",
    "server_queue": "red",
    "prefill": "blue",
    "kv_transfer": "semi-dark-blue",
    "decode_slot": "semi-dark-red",
    "return": "#6ed0e0",
    "router_hold": "semi-dark-orange",
    "router_return": "#ba43a9",
    "decode": "green",
    "client_stall": "yellow",
}

# The stages after the first token.
AFTER = "decode|client_stall"


def stage(name):
    return f'stage="{name}", {WORKER}'


def quantiles(histogram, select):
    return [(quantile(q, histogram, select=select), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)]


# All fronts': a worker does not know which of them a request came from.
WAITING = 'sum (queuescope_in_flight{phase="waiting"})'
AT_WORKERS = 'sum (queuescope_worker_in_flight{phase="waiting"})'

PANELS = [
    figure(
        "Requests a second",
        "Generation requests that ended, however they ended.",
        total("queuescope_requests_total", select=ENDED),
        unit="reqps",
        decimals=1,
    ),
    figure(
        "Went well",
        "Share of the requests that ended well. What became of the others: the dashboard of the proxy's health.",
        f'({total("queuescope_requests_total", select=f"""outcome="ok", {ENDED}""")} or vector(0)) / {total("queuescope_requests_total", select=ENDED)}',
        unit="percentunit",
        colors=(("red", None), ("orange", 0.9), ("green", 0.98)),
        decimals=1,
    ),
    figure(
        "TTFT, 95 %",
        "95 of 100 requests had their first token sooner than this. Orange from 1 s, red from 2 s on: set it to your own objective.",
        quantile(0.95, TTFT, select=ASKED),
        unit="s",
        colors=(("green", None), ("orange", 1), ("red", 2)),
    ),
    figure(
        "Router queue, 95 %",
        "Wait in the router queue. Known where a worker hop stands behind the router.",
        quantile(0.95, STAGE, select=stage("router_queue")),
        unit="s",
        colors=(("green", None), ("orange", 0.5), ("red", 1)),
    ),
    figure(
        "Server queue, 95 %",
        "Wait in the server queue and nothing else, of the requests of which the engine tells it.",
        quantile(0.95, STAGE, select=stage("server_queue")),
        unit="s",
        colors=(("green", None), ("orange", 0.5), ("red", 1)),
    ),
    figure(
        "Without a token yet",
        "Requests that were sent on and have no token yet: they are in the router queue, in a server queue or in prefill. Those "
        "whose reply is no stream count until it has ended.",
        f'sum (queuescope_in_flight{{phase="waiting", {FRONT}}})',
        colors=(("green", None), ("orange", 30), ("red", 100)),
        decimals=0,
    ),
    heading("Stages"),
    lines(
        "Where the wait for the first token goes",
        "The time before the first token, shared out among the stages. Wide orange: the router holds requests back (its "
        "limit is too low, or all workers are full). Wide red: they wait in the server queue. Mostly blue: nobody waits for "
        "anything but the prefill of the own prompt. Grey, `server`: unseen in the server, which tells no timings "
        "(streamed chat, where the proxy has no --engine-traces); of a reply that is no stream this holds its decoding too.",
        (total(STAGE + "_sum", "stage", f'stage!~"{AFTER}", {WORKER}'), "{{stage}}"),
        unit="s",
        size=(12, 9),
        stack="percent",
        colors=COLORS,
    ),
    lines(
        "Mean time in each stage",
        "What a request spends in a stage. Without decode, which would dwarf the rest, and only of requests of which the "
        "stage is known. `server` is the way from network to return of those whose server tells no timings.",
        (mean(STAGE, "stage", f'stage!="decode", {WORKER}'), "{{stage}}"),
        unit="s",
        size=(12, 9),
        colors=COLORS,
    ),
    lines(
        "Router against server",
        "Waits in the router queue and in the server queue. The server's curves hold only requests of which the server tells timings "
        "(streamed chat with --engine-traces only), the router's hold all. Both high: more servers. Router high, server low: the router's limit on "
        "requests is too low, or it holds back for another reason. Server high, router low: usual for a router without a "
        "limit; look below whether all servers are.",
        (quantile(0.95, STAGE, select=stage("router_queue")), "router queue p95"),
        (quantile(0.95, STAGE, select=stage("server_queue")), "server queue p95"),
        (mean(STAGE, select=stage("router_queue")), "router queue mean"),
        (mean(STAGE, select=stage("server_queue")), "server queue mean"),
        unit="s",
        colors={"router queue p95": "orange", "server queue p95": "red", "router queue mean": "light-orange", "server queue mean": "light-red"},
    ),
    lines(
        "Where requests are now",
        "Requests under way, by where they are; of all fronts, whichever is chosen above. In the router queue is about: what the "
        "fronts wait for and no worker hop has. A band that widens is a queue that grows.",
        (f"clamp_min({WAITING} - {AT_WORKERS}, 0)", "in the router queue"),
        (AT_WORKERS, "at a server, no token yet"),
        ('sum (queuescope_in_flight{phase="streaming"})', "streaming"),
        ('sum (queuescope_in_flight{phase="receiving"})', "being received"),
        stack="normal",
        colors={"in the router queue": "orange", "at a server, no token yet": "red", "streaming": "green", "being received": "#8e8e8e"},
    ),
    heading("Time to first token"),
    lines(
        "TTFT",
        "From the request's arrival at the front to its first token. The dashed line is the objective of the alert (2 s). "
        "A p99 far above a calm p50 is a queue that only some requests meet.",
        *quantiles(TTFT, ASKED),
        unit="s",
        limit=2,
    ),
    heatmap(
        "TTFT, all requests",
        "Each column is an interval of time, each cell a bucket: the darker, the more requests. Two bands are two kinds of "
        "requests, often two workers; a band that climbs is a queue.",
        cells(TTFT, ASKED),
    ),
    lines(
        "Server queue",
        "Wait in the server queue. It grows when a server gets more than it can take: compare the workers below.",
        *quantiles(STAGE, stage("server_queue")),
        unit="s",
    ),
    heatmap(
        "Server queue, all requests",
        "As the heatmap of TTFT, of the server queue alone. Nothing but the lowest row: nobody waits.",
        cells(STAGE, stage("server_queue")),
        scheme="Reds",
    ),
    heading("By worker"),
    lines(
        "Server queue by worker, 95 %",
        "One curve above the others: that worker is slower, or gets more than its share. All of them: not enough workers.",
        (quantile(0.95, STAGE, "worker", stage("server_queue")), "{{worker}}"),
        unit="s",
        size=(8, 8),
    ),
    lines(
        "Prefill by worker, mean",
        "Mean time from the end of the server queue to the first token. It follows prompt lengths; a worker above the others with the "
        "same prompts is slow.",
        (mean(STAGE, "worker", stage("prefill")), "{{worker}}"),
        unit="s",
        size=(8, 8),
    ),
    lines(
        "Between tokens by worker, mean",
        "Mean gap between two tokens of a stream. It rises with the number of requests that run at once.",
        (mean(GAPS, "worker", WORKER), "{{worker}}"),
        unit="s",
        size=(8, 8),
    ),
    heading("By model and endpoint, and what comes after the first token"),
    lines(
        "TTFT by model, 95 %",
        "A model above the others has too few servers, or longer prompts.",
        (quantile(0.95, TTFT, "gen_ai_request_model", ASKED), "{{gen_ai_request_model}}"),
        unit="s",
        size=(12, 8),
    ),
    lines(
        "Duration by endpoint, 95 %",
        "The whole request, arrival to last byte; failed ones too, as far as they got.",
        (quantile(0.95, DURATION, "http_route", ASKED), "{{http_route}}"),
        unit="s",
        size=(12, 8),
    ),
    lines(
        "Where all the time goes",
        "All time of the requests that went well, with decode. Mostly green: requests wait for nothing but their tokens. "
        "client_stall is time in which clients did not read; server is time in a server that tells no timings.",
        (total(STAGE + "_sum", "stage", WORKER), "{{stage}}"),
        unit="s",
        size=(12, 8),
        stack="percent",
        colors=COLORS,
    ),
    lines(
        "Time per output token",
        "Decode time by token of a request, as its client reads it (TPOT).",
        *quantiles(TPOT, ASKED),
        unit="s",
        size=(12, 8),
    ),
    heading("Why they waited"),
    lines(
        "Waiting in server queues by cause",
        "Requests that wait at once, by what they wait for. Slots: raise max_running_requests, or add servers. KV memory: more memory, "
        "shorter contexts. Prefill turn: shorter prompts, more cache. not_seen_here: others send to these servers too. It is "
        "counted when those that ran meanwhile have ended, up to a minute later. Of prefill and decode servers: decode_memory, "
        "prefill_queue, kv_transfer, decode_slots, at once.",
        (total("queuescope_wait_cause_seconds_total", "cause", WORKER), "{{cause}}"),
        size=(12, 8),
        stack="normal",
    ),
    lines(
        "Waiting by the headers that label requests",
        "Requests of each tenant (`label_headers`) that wait in server queues at once. Empty where no header is named.",
        (total("queuescope_label_wait_seconds_total", "header, value", FRONT), "{{header}} {{value}}"),
        size=(12, 8),
    ),
]
