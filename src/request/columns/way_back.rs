//! What is told of the router's way back, and of what clocks cannot tell.

use crate::request::column::Unit::{Latency, Seconds, Time};
use crate::request::column::{Column, moment, nanos, of_request, of_sequence, period};
use crate::request::passage::between;
use crate::request::timeline::Period;

pub const WORKER_FIRST_BYTE_TIME: Column = of_request(
    "worker_first_byte_time",
    Time,
    "The worker hop passed the first bytes of the response's body on: of a stream, its first event.",
    |r| moment(r.facts.worker_passage.first),
);

pub const WORKER_LAST_BYTE_TIME: Column = of_request(
    "worker_last_byte_time",
    Time,
    "The worker hop passed the last bytes of the response's body on.",
    |r| moment(r.facts.worker_passage.last),
);

pub const WORKER_LONGEST_GAP: Column = of_request(
    "worker_longest_gap",
    Seconds,
    "Longest time between two pieces of the response's body at the worker hop.",
    |r| nanos(r.facts.worker_passage.longest_gap_nanos),
);

pub const ROUTER_RETURN: Column = of_request(
    "router_return",
    Latency,
    "What the router held the first event back on its way to the client: first bytes of the body read at the front − \
        passed on by the hop. Known in the file of a front that has the hop in its process.",
    |r| nanos(r.router_return()),
);

pub const ROUTER_RETURN_LAST: Column = of_request(
    "router_return_last",
    Latency,
    "The same of the last bytes, a stalled client's time in it. Where it is less than `router_return`, the router \
        held the first event back longer than the rest: what is measured between tokens is too short by the difference.",
    |r| nanos(between(r.facts.worker_passage.last, r.facts.passage.last)),
);

pub const ROUTER_GAP_ADDED: Column = of_request(
    "router_gap_added",
    Seconds,
    "Longest time between two pieces of the body at the front − `worker_longest_gap`, both without stalls: what the \
        router added to it; negative where it took from it.",
    |r| {
        let here = r.facts.passage.longest_gap_nanos;
        let there = r.facts.worker_passage.longest_gap_nanos;
        nanos(here.zip(there).map(|(here, there)| here - there))
    },
);

pub const RETURN_TIME: Column = of_sequence(
    "return_time",
    Latency,
    "The first token's way from the server to the worker hop; to the front, router and all, where no hop saw it pass: the \
        stage `return`.",
    |r| period(r, Period::RETURN),
);
