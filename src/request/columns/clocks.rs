//! What is told of other clocks, and of what they cannot tell.

use crate::request::column::Unit::{Seconds, Text};
use crate::request::column::{Column, Value, nanos, of_request, of_sequence, text, words};
use crate::request::timeline::{ClockOf, Relation};

pub const CLOCK_OFFSET: Column = of_request(
    "clock_offset",
    Seconds,
    "The engine's clock minus ours.",
    |r| nanos(r.offset(ClockOf::Engine).map(|offset| offset.nanos)),
);

pub const CLOCK_OFFSET_ERROR: Column = of_request(
    "clock_offset_error",
    Seconds,
    "The true offset lies within ± this.",
    |r| nanos(r.offset(ClockOf::Engine).map(|offset| offset.error_nanos)),
);

pub const CLOCK_STATE: Column = of_sequence(
    "clock_state",
    Text,
    "`offset`: the engine's times were put on our clock; `raw`: they stand \
    as the engine gave them.",
    |r| match r.timeline.relation(ClockOf::Engine) {
        _ if !r.has_engine_times() => Value::Empty,
        Relation::Unknown => text(Some("raw")),
        Relation::Same | Relation::Apart(_) => text(Some("offset")),
    },
);

pub const HOP_CLOCK_OFFSET: Column = of_request(
    "hop_clock_offset",
    Seconds,
    "The worker hop's clock minus ours, where it is another process.",
    |r| nanos(r.offset(ClockOf::Hop).map(|offset| offset.nanos)),
);

pub const HOP_CLOCK_OFFSET_ERROR: Column = of_request(
    "hop_clock_offset_error",
    Seconds,
    "The true offset of the hop's clock lies within ± this.",
    |r| nanos(r.offset(ClockOf::Hop).map(|offset| offset.error_nanos)),
);

pub const FRONT_CLOCK_OFFSET: Column = of_request(
    "front_clock_offset",
    Seconds,
    "The front's clock minus ours, where it is another process.",
    |r| nanos(r.offset(ClockOf::Front).map(|offset| offset.nanos)),
);

pub const FRONT_CLOCK_OFFSET_ERROR: Column = of_request(
    "front_clock_offset_error",
    Seconds,
    "The true offset of the front's clock lies within ± this.",
    |r| nanos(r.offset(ClockOf::Front).map(|offset| offset.error_nanos)),
);

pub const WITHIN_CLOCK_ERROR: Column = of_sequence(
    "within_clock_error",
    Text,
    "Durations of this row that are not larger than the errors of the clocks they were taken with, so that only this \
        bound of them is known; columns joined by `;`. How to take means is told below the columns.",
    |r| words(r.within_clock_error().join(";")),
);
