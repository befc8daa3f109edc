//! What is told of a request's end.

use crate::request::column::Unit::{Seconds, Text, Time};
use crate::request::column::{Column, Value, nanos, of_request, of_sequence, time};
use crate::request::timeline::Moment;

pub const END_TIME: Column = of_request(
    "end_time",
    Time,
    "The request was over, whoever ended it: the response's last byte was read, or the client, the upstream, a limit or \
    this process had given it up.",
    |r| time(r, Moment::End),
);

pub const ELAPSED: Column = of_request(
    "elapsed",
    Seconds,
    "`end_time − arrival_time`, however it ended (a hop's own row: from when the hop had read the head).",
    |r| nanos(r.elapsed()),
);

pub const OVERHEAD: Column = of_request(
    "overhead",
    Seconds,
    "What the proxy that wrote the row added: the time from `arrival_time` until it had written the last of the response, without \
    the time in which an upstream had the request (of each sending: from the head's until the last byte of the response was \
    read, or the sending had failed), without the time that the client held up writes after that and without `prompt_wait`. \
    Connecting to an upstream is in it.",
    |r| nanos(r.facts.overhead_nanos),
);

pub const PROMPT_WAIT: Column = of_request(
    "prompt_wait",
    Seconds,
    "How long the proxy waited for the client to send its prompt before it chose an upstream; only with the policy `cache_aware`, \
    which goes by it. It is in `ttft` and `total_latency`, and in `queue_time_in_router` where that is known: with other policies \
    the head has been sent by then, and the same wait is in `network_time`.",
    |r| nanos(r.facts.prompt_wait_nanos),
);

pub const ENDED_IN: Column = of_sequence(
    "ended_in",
    Text,
    "The stage it was last seen in, named as in the table of stages; several are joined by `+` where nobody saw which, and \
    `server` stands for all of `network` to `return`: sent to the server, and no token came back. `proxy`: a proxy of ours \
    had not sent it on. `connecting`: the generator got no connection. `done`: it went well.",
    |r| {
        r.last_seen()
            .map_or(Value::Empty, |last_seen| Value::Text(last_seen.name()))
    },
);
