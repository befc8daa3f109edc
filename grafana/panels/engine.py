"""Engine and routing: SGLang's own metrics and the router's beside ours."""

from .kinds import figure, heading, lines, mean, quantile, total

UID = "queuescope-engine"
TITLE = "queuescope: engine and routing"
ABOUT = "What SGLang and the router say of themselves, beside what was seen from outside."
VARIABLES = [
    (
        "model",
        "Model",
        "gen_ai_server_request_duration_seconds_count",
        "gen_ai_request_model",
        "SGLang's own figures, and TTFT at the front. Not the router's.",
    ),
    ("worker", "Worker", "queuescope_stage_duration_seconds_count", "worker", "All but the router's own figures and TTFT at the front."),
    ("endpoint", "Endpoint", "queuescope_requests_total", "endpoint", "TTFT at the front alone: nothing else here knows it."),
]

STAGE = "queuescope_stage_duration_seconds"
TTFT = "gen_ai_server_time_to_first_token_seconds"
WORKER = 'worker=~"$worker"'
ENGINE = 'model_name=~"$model", worker=~"$worker"'
ASKED = 'gen_ai_request_model=~"$model", http_route=~"$endpoint"'
# A scrape config that gives a server the name of its hop (label `worker`) puts both beside each other. A server without
# it still has its address, under a name that is sorted behind `worker`: so each worker has one colour in all panels.
SERVER = "{{worker}} {{worker_at}}"


def gauge(name, add="sum"):
    named = f'label_replace(sglang:{name}{{{ENGINE}}}, "worker_at", "$1", "instance", "(.+)")'
    return f"{add} by (worker, worker_at) ({named})"


SHARE = total("queuescope_attempts_total", "worker", WORKER)

PANELS = [
    figure(
        "Servers that answer",
        "SGLang servers that Prometheus can scrape.",
        'sum (up{job="sglang"})',
        decimals=0,
    ),
    figure(
        "Running",
        "Requests that the servers decode or prefill now, as they say.",
        f"sum (sglang:num_running_reqs{{{ENGINE}}})",
        decimals=0,
    ),
    figure(
        "In the server queue",
        "Requests in the server queues now, as they say.",
        f"sum (sglang:num_queue_reqs{{{ENGINE}}})",
        colors=(("green", None), ("orange", 10), ("red", 50)),
        decimals=0,
    ),
    figure(
        "Output tokens a second",
        "Tokens that reached the clients.",
        total("queuescope_tokens_total", select=f'type="output", {WORKER}'),
        decimals=0,
    ),
    figure(
        "Prompt tokens from cache",
        "Share of the prompt tokens that the servers' prefix caches held. Of chats a server tells it only with "
        "--enable-cache-report; without it their cached tokens count as none.",
        f"""{total("queuescope_tokens_total", select=f'type="cached", {WORKER}')} / {total("queuescope_tokens_total", select=f'type="prompt", {WORKER}')}""",
        unit="percentunit",
        colors=(("blue", None),),
        decimals=1,
    ),
    figure(
        "Uneven by",
        "Attempts at the busiest worker over those of the mean worker, by our hops: 1 is an even share, the number of workers "
        "is one worker that gets all. A router that knows caches is uneven on purpose, and servers of different models are "
        "not to be compared: choose workers of one.",
        f"max ({SHARE}) / avg ({SHARE})",
        colors=(("green", None), ("orange", 1.5), ("red", 2.5)),
        decimals=2,
    ),
    heading("Servers"),
    lines(
        "Running requests",
        "As SGLang says. A flat top is --max-running-requests, or memory for the cache: from there on requests queue.",
        (gauge("num_running_reqs"), SERVER),
        size=(8, 8),
    ),
    lines(
        "In the server queue, by server",
        "As SGLang says, at the moment of the scrape. One server's curve alone: the router sends it more than it can take.",
        (gauge("num_queue_reqs"), SERVER),
        size=(8, 8),
    ),
    lines(
        "At the worker, without a token yet",
        "As our hops count them: in the server queue or in prefill. It includes what the server has read but not yet queued, so it is "
        "a little above SGLang's own queue.",
        (f'sum by (worker) (queuescope_worker_in_flight{{phase="waiting", {WORKER}}})', "{{worker}}"),
        size=(8, 8),
    ),
    lines(
        "TTFT, SGLang's and ours, 95 %",
        "SGLang counts from its own HTTP server on, we from the arrival at the front. The gap is router and network.",
        (quantile(0.95, "sglang:time_to_first_token_seconds", select=ENGINE), "SGLang"),
        (quantile(0.95, TTFT, select=ASKED), "front"),
        unit="s",
        colors={"SGLang": "blue", "front": "orange"},
    ),
    lines(
        "Server queue, SGLang's and ours, 95 %",
        "The same wait, from SGLang's /metrics and from the requests' own timings. They differ by the buckets, and by "
        "requests that tell no timings (streamed OpenAI endpoints): if they differ by more, look at timings missing.",
        (quantile(0.95, "sglang:queue_time_seconds", "worker", ENGINE), "SGLang {{worker}}"),
        (quantile(0.95, STAGE, "worker", f'stage="server_queue", {WORKER}'), "seen {{worker}}"),
        unit="s",
        dashed="seen",
    ),
    lines(
        "Cache for keys and values in use",
        "Share of the token capacity in use. Near 1 the scheduler lets requests wait or takes some back (retractions).",
        (gauge("token_usage", "max"), SERVER),
        unit="percentunit",
        size=(8, 8),
    ),
    lines(
        "Output tokens",
        "SGLang's count by server, and ours of what was passed on. Ours lower: clients that left, or replies that tell no number.",
        (total("sglang:generation_tokens_total", "worker", ENGINE), "SGLang {{worker}}"),
        (total("queuescope_tokens_total", "worker", f'type="output", {WORKER}'), "passed on {{worker}}"),
        size=(8, 8),
        dashed="passed on",
    ),
    lines(
        "Prompt tokens",
        "Tokens of the prompts, and those of them that a prefix cache held. The closer both, the less prefill there is.",
        (total("queuescope_tokens_total", select=f'type="prompt", {WORKER}'), "prompt"),
        (total("queuescope_tokens_total", select=f'type="cached", {WORKER}'), "from cache"),
        size=(8, 8),
        colors={"prompt": "blue", "from cache": "green"},
    ),
    heading("Balance"),
    lines(
        "Share of the attempts",
        "How the router shares requests out. Bands of one height are an even share; compare with the queues above.",
        (total("queuescope_attempts_total", "worker", WORKER), "{{worker}}"),
        unit="reqps",
        stack="percent",
        size=(8, 8),
    ),
    lines(
        "Attempts that failed",
        "Attempts at a server that brought no good response, by worker. A router that tries again hides them from clients.",
        (total("queuescope_attempts_total", "worker, outcome", f'outcome!="ok", {WORKER}'), "{{worker}} {{outcome}}"),
        unit="reqps",
        size=(8, 8),
    ),
    lines(
        "Streaming by worker",
        "Requests whose first token has come. With an even share, a worker with more of them is slower at decoding.",
        (f'sum by (worker) (queuescope_worker_in_flight{{phase="streaming", {WORKER}}})', "{{worker}}"),
        size=(8, 8),
    ),
    heading("Router (its own metrics)"),
    lines(
        "Answers of the router",
        "Responses to its clients by status. 429 and 408: its queue was full, or held a request for too long.",
        (total("smg_http_responses_total", "status_code"), "{{status_code}}"),
        unit="reqps",
        size=(8, 8),
    ),
    lines(
        "Chosen workers",
        "How often it chose a worker, by model and policy. Retries count again.",
        (total("smg_worker_selection_total", "model, policy"), "{{model}} {{policy}}"),
        unit="reqps",
        size=(8, 8),
    ),
    lines(
        "Time to the response's head, 95 %",
        "The router's own duration ends with the response's head: of a stream that is about its first event, not its end.",
        (quantile(0.95, "smg_router_request_duration_seconds", "model"), "{{model}}"),
        unit="s",
        size=(8, 8),
    ),
    lines(
        "In the router queue",
        "Its own count of requests held back (smg 1.x), beside what our front and hops see. They differ by a scrape's time.",
        ("sum (smg_admission_queue_depth)", "router"),
        ('clamp_min(sum (queuescope_in_flight{phase="waiting"}) - sum (queuescope_worker_in_flight{phase="waiting"}), 0)', "seen"),
        size=(8, 8),
        colors={"router": "blue", "seen": "orange"},
    ),
    lines(
        "Requests at a worker, as the router counts",
        "What its policy balances by (smg 1.x).",
        ("sum by (worker) (smg_worker_requests_active)", "{{worker}}"),
        size=(8, 8),
    ),
    lines(
        "Healthy workers",
        "1 while the router sends to a worker; 0 after failed health checks. Its circuit breaker can leave a healthy one out too.",
        ("min by (worker) (smg_worker_health)", "{{worker}}"),
        size=(8, 8),
        most=1,
    ),
]
