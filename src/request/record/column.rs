//! What a column is, and how facts become cells.

use std::borrow::Cow;

use crate::clock::Stamp;

use super::Record;
use crate::request::attempt::SpanId;
use crate::request::timeline::{Moment, Span};

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Nobody knows.
    Empty,
    /// Words.
    Text(Cow<'a, str>),
    /// Yes or no.
    Bool(bool),
    /// A number of things.
    Count(u64),
    /// A duration, nanoseconds; written as seconds.
    Nanos(i64),
    /// A moment; written as seconds from the file's base.
    Time(Stamp),
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Words.
    Text,
    /// `True` or `False`.
    Bool,
    /// A number of things.
    Count,
    /// A duration in seconds that summaries take quantiles of.
    Latency,
    /// A duration in seconds.
    Seconds,
    /// A moment, in seconds from the file's base.
    Time,
}

/// A column of the per-request table.
pub struct Column {
    /// Name, as in the CSV header.
    pub name: &'static str,
    /// What it holds.
    pub unit: Unit,
    /// One sentence: what it is and how to read it.
    pub help: &'static str,
    /// Its cell in a record.
    pub get: for<'a> fn(&'a Record) -> Value<'a>,
}

macro_rules! column {
    ($name:literal, $unit:ident, $help:literal, $get:expr) => {
        Column {
            name: $name,
            unit: Unit::$unit,
            help: $help,
            get: $get,
        }
    };
}
pub(super) use column;

pub(super) fn text(value: Option<&str>) -> Value<'_> {
    value.map_or(Value::Empty, |text| Value::Text(Cow::Borrowed(text)))
}

/// Nothing where there are no words.
pub(super) fn words<'a>(words: impl Into<Cow<'a, str>>) -> Value<'a> {
    match words.into() {
        words if words.is_empty() => Value::Empty,
        words => Value::Text(words),
    }
}

pub(super) fn count(value: Option<u64>) -> Value<'static> {
    value.map_or(Value::Empty, Value::Count)
}

pub(super) fn nanos(value: Option<i64>) -> Value<'static> {
    value.map_or(Value::Empty, Value::Nanos)
}

pub(super) fn yes_no(value: Option<bool>) -> Value<'static> {
    value.map_or(Value::Empty, Value::Bool)
}

pub(super) fn time(record: &Record, moment: Moment) -> Value<'static> {
    record
        .timeline
        .time(moment)
        .map_or(Value::Empty, Value::Time)
}

pub(super) fn moment(value: Option<Stamp>) -> Value<'static> {
    value.map_or(Value::Empty, Value::Time)
}

pub(super) fn span(record: &Record, span: Span) -> Value<'static> {
    nanos(record.timeline.nanos(span))
}

pub(super) fn span_id(value: Option<SpanId>) -> Value<'static> {
    value.map_or(Value::Empty, |span| {
        Value::Text(Cow::Owned(span.to_string()))
    })
}
