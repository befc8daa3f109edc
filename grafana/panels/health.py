"""Proxy health: what it costs, what it loses, what it cannot see."""

from .kinds import cells, figure, heading, heatmap, lines, quantile, rate, total

UID = "queuescope-health"
TITLE = "queuescope: proxy health"
ABOUT = "Whether the proxy itself is in the way, and whether its figures can be trusted."
VARIABLES = [
    ("front", "Proxy", "queuescope_build_info", "instance", "Everything here."),
    ("worker", "Worker", "queuescope_requests_total", "worker", "Requests by outcome and by endpoint. The rest is the proxy's own."),
    (
        "endpoint",
        "Endpoint",
        "queuescope_requests_total",
        "endpoint",
        "Requests by outcome and by endpoint, and timings missing. The rest is the proxy's own.",
    ),
]

HERE = 'instance=~"$front"'
ENDED = 'instance=~"$front", endpoint=~"$endpoint", worker=~"$worker"'
OVERHEAD = "queuescope_overhead_seconds"
LAG = "queuescope_runtime_lag_seconds"


def quantiles(histogram):
    return [(quantile(q, histogram, select=HERE), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)]


def of_all(metric, part):
    return f"{total(metric, select=f'{part}, {HERE}')} / {total(metric, select=HERE)}"


PANELS = [
    figure(
        "Proxies that answer",
        "Processes of queuescope that Prometheus can scrape.",
        f'sum (up{{job="queuescope", {HERE}}})',
        colors=(("red", None), ("green", 1)),
        decimals=0,
    ),
    figure(
        "Overhead, 99 %",
        "What the proxy adds to a request before sending and after the last byte. Red from 10 ms on.",
        quantile(0.99, OVERHEAD, select=HERE),
        unit="s",
        colors=(("green", None), ("orange", 0.003), ("red", 0.01)),
    ),
    figure(
        "Own lag, 99 %",
        "How late a task of the proxy is run that wakes every 200 ms. From 50 ms on the proxy is the bottleneck.",
        quantile(0.99, LAG, select=HERE),
        unit="s",
        colors=(("green", None), ("orange", 0.01), ("red", 0.05)),
    ),
    figure(
        "Processor",
        "Cores that the proxies use, by their own count. Near `threads` there is no more.",
        total("process_cpu_seconds_total", select='job="queuescope", ' + HERE),
        decimals=2,
    ),
    figure(
        "Rows lost",
        "Rows of the records file that were lost in an hour. Not 0: the disk is full or too slow.",
        f"sum (increase(queuescope_rows_lost_total{{{HERE}}}[1h]))",
        colors=(("green", None), ("red", 1)),
        decimals=0,
    ),
    figure(
        "Traces lost",
        "Traces that were dropped in an hour: the collector is down or too slow. Requests do not notice.",
        f"sum (increase(queuescope_traces_dropped_total{{{HERE}}}[1h]))",
        colors=(("green", None), ("red", 1)),
        decimals=0,
    ),
    heading("Is the proxy in the way?"),
    lines(
        "Overhead",
        "What this process adds to a request: before it sends it on (connecting is in it), and after the "
        "last byte. Passing pieces on is not in it; neither are other processes, such as hops.",
        *quantiles(OVERHEAD),
        unit="s",
        size=(8, 8),
    ),
    heatmap(
        "Overhead, all requests",
        "A second band above the usual one: something holds some requests up here, such as large bodies or a busy machine.",
        cells(OVERHEAD, HERE),
        size=(8, 8),
    ),
    lines(
        "Own lag",
        "How late the runtime ran a task that was due: the dashed line is where the alert is. Rising with the load: give "
        "the proxy more threads or a core of its own.",
        *quantiles(LAG),
        unit="s",
        size=(8, 8),
        limit=0.05,
    ),
    lines(
        "Processor",
        "Cores in use. Near the `threads` of the config, the proxy cannot do more.",
        (rate("process_cpu_seconds_total", f'job="queuescope", {HERE}'), "{{instance}}"),
        size=(8, 8),
    ),
    lines(
        "Memory",
        "Resident memory. It follows connections and requests under way, and comes back.",
        (f'process_resident_memory_bytes{{job="queuescope", {HERE}}}', "{{instance}}"),
        unit="bytes",
        size=(8, 8),
    ),
    lines(
        "Open files",
        "Sockets included: two a request under way. At the limit no connection is accepted.",
        (f'process_open_fds{{job="queuescope", {HERE}}}', "{{instance}}"),
        size=(8, 8),
    ),
    heading("How requests end"),
    lines(
        "Requests that did not go well",
        "By outcome. client_abort: the client left. rejected: queue full. upstream_died: a stream ended without its end.",
        (total("queuescope_requests_total", "outcome", f'outcome!="ok", {ENDED}'), "{{outcome}}"),
        unit="reqps",
        size=(8, 8),
    ),
    lines(
        "Where they were when they ended",
        "Of those that did not go well: the stage that they were last seen in. Aborts in `server`: clients give up in the queue.",
        (total("queuescope_ended_in_total", "outcome, stage", HERE), "{{outcome}}: {{stage}}"),
        unit="reqps",
        size=(8, 8),
    ),
    lines(
        "Requests by endpoint",
        "All that ended, and those that passed unrecorded.",
        (total("queuescope_requests_total", "endpoint", ENDED), "{{endpoint}}"),
        (total("queuescope_passed_through_total", select=HERE), "not recorded"),
        unit="reqps",
        size=(8, 8),
    ),
    heading("Connections"),
    lines(
        "Connections used again",
        "Share of the sendings on a connection that had been used before. Low: each request pays for a connection.",
        (of_all("queuescope_upstream_connections_total", 'reused="true"'), "used again"),
        unit="percentunit",
        size=(6, 8),
        most=1,
    ),
    lines(
        "Connections that failed",
        "Connections to an upstream that failed. A few around a restart are usual.",
        (total("queuescope_upstream_connect_failures_total", "upstream", HERE), "{{upstream}}"),
        unit="reqps",
        size=(6, 8),
    ),
    lines(
        "Upstreams in use",
        "1, or 0 while an upstream is left out because it could not be connected to.",
        (f"min by (upstream) (queuescope_upstream_healthy{{{HERE}}})", "{{upstream}}"),
        size=(6, 8),
        most=1,
    ),
    lines(
        "Bytes",
        "Body bytes of requests and of their responses, passed on a second.",
        (total("queuescope_bytes_total", "direction", HERE), "{{direction}}"),
        unit="Bps",
        size=(6, 8),
    ),
    heading("Can the figures be trusted?"),
    lines(
        "Timings missing",
        "Requests that went well but have no time of the server queue. openai_stream: switch on the trace join "
        "(--engine-traces). openai_reply: the same, or the client asks with return_meta_info. metrics_off: start SGLang with "
        "--enable-metrics. too_old: SGLang before 0.5.5 tells none. unread: the response was encoded or not JSON.",
        (total("queuescope_timing_missing_total", "reason", f'endpoint=~"$endpoint", {HERE}'), "{{reason}}"),
        unit="reqps",
        size=(8, 8),
    ),
    lines(
        "Clocks: uncertainty",
        "The true offset of each other clock lies within ± this. What is shorter than it cannot be told from 0.",
        (f"max by (clock) (queuescope_clock_offset_error_seconds{{{HERE}}})", "{{clock}}"),
        unit="s",
        size=(8, 8),
    ),
    lines(
        "Clocks: offset",
        "Each other clock minus ours. A jump is a step of a clock; times are put right by it.",
        (f"max by (clock) (queuescope_clock_offset_seconds{{{HERE}}})", "{{clock}}"),
        unit="s",
        size=(8, 8),
        least=None,
    ),
    lines(
        "Joining hops to requests",
        "What joined an attempt at a hop to its request. `nothing` or `late`: the router changes ids, or holds attempts for long.",
        (total("queuescope_joins_total", "by", HERE), "{{by}}"),
        unit="reqps",
        size=(8, 8),
    ),
    lines(
        "Join tables",
        "Entries of the tables by which attempts at hops find their request. Always rising: something is not forgotten.",
        (f"sum by (table) (queuescope_join_table_entries{{{HERE}}})", "{{table}}"),
        size=(8, 8),
    ),
    lines(
        "Records and traces",
        "Rows written and traces exported, and what was lost of either, a second.",
        (total("queuescope_rows_written_total", select=HERE), "rows written"),
        (total("queuescope_rows_lost_total", select=HERE), "rows lost"),
        (total("queuescope_traces_exported_total", select=HERE), "traces exported"),
        (total("queuescope_traces_dropped_total", select=HERE), "traces dropped"),
        unit="cps",
        size=(8, 8),
        colors={"rows lost": "red", "traces dropped": "dark-red"},
    ),
]
