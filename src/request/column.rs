//! What a column is, and how facts become cells.

use std::borrow::Cow;

use crate::clock::Stamp;

use super::attempt::SpanId;
use super::record::Record;
use super::timeline::{Moment, Period};

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

/// Whose a value is: it counts once in sums and quantiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The request's, in the rows of all its sequences alike.
    Request,
    /// The sequence's own.
    Sequence,
}

type Get = for<'a> fn(&'a Record) -> Value<'a>;

/// A column of the per-request table.
#[derive(Debug)]
pub struct Column {
    /// Name, as in the CSV header.
    pub name: &'static str,
    /// What it holds.
    pub unit: Unit,
    /// Whose it is.
    pub scope: Scope,
    /// One sentence: what it is and how to read it.
    pub help: &'static str,
    /// Its cell in a record.
    pub get: Get,
}

/// A column of what the sequences of a request have in common.
pub(super) const fn of_request(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    get: Get,
) -> Column {
    Column {
        name,
        unit,
        scope: Scope::Request,
        help,
        get,
    }
}

/// A column of what each sequence has for itself.
pub(super) const fn of_sequence(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    get: Get,
) -> Column {
    Column {
        scope: Scope::Sequence,
        ..of_request(name, unit, help, get)
    }
}

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

pub(super) fn period(record: &Record, period: Period) -> Value<'static> {
    nanos(record.timeline.nanos(period))
}

pub(super) fn span_id(value: Option<SpanId>) -> Value<'static> {
    value.map_or(Value::Empty, |span| {
        Value::Text(Cow::Owned(span.to_string()))
    })
}
