//! What a column is, and the macro that makes a row of a table of them.

pub use super::cell::Value;

use super::timeline::{Moment, Period};

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

/// What a column follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A moment, on the row's clock where that is known.
    Moment(Moment),
    /// The time between two moments.
    Period(Period),
    /// Anything else.
    Own,
}

/// Makes of a table of columns the struct [`Row`] with a field a column, the table [`COLUMNS`](super::columns::COLUMNS),
/// a place in it for each ([`ColumnId`](super::columns::ColumnId)).
///
/// A line: `name "label": Unit of Scope origin`, its help above it. The label may be left out where it is the name; a text
/// of a type of its own is `Text<Type>`. The origin is `[Moment]`, `[Moment to Moment]` or `(function)` of the timeline; it is
/// left out of what does not follow from that alone.
macro_rules! columns {
    ($(
        $(#[doc = $help:literal])+
        $name:ident $($label:literal)?: $unit:ident $(<$type:ty>)? of $scope:ident
        $([$($moments:tt)+])? $(($($of:tt)+))?
    )+) => {
        /// What is known of a generated sequence and of its request: a field a column, and what the columns do not show. What
        /// follows from other fields is there when the request has ended.
        #[derive(Clone, Debug, Default)]
        pub struct Row {
            $($(#[doc = $help])+ pub $name: Option<columns!(@type $unit $($type)?)>,)+
            /// The moments, with what is known of their clocks.
            pub timeline: Timeline,
            /// Place among the request's sequences.
            pub index: u32,
            /// How many sequences the request has.
            pub sequences: u32,
            /// What no column shows: known in the process that saw the request.
            pub more: More,
        }

        /// A column, by its place in [`COLUMNS`].
        #[expect(non_camel_case_types, reason = "a variant is called as its column is")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ColumnId {
            $($(#[doc = $help])+ $name,)+
        }

        /// Every column, in the order of the CSV.
        pub static COLUMNS: [Column; [$(stringify!($name)),+].len()] = [$(Column {
            id: ColumnId::$name,
            name: stringify!($name),
            label: label(concat!($($label)?), stringify!($name)),
            unit: Unit::$unit,
            scope: Scope::$scope,
            origin: columns!(@origin $([$($moments)+])?),
            help: concat!($($help),+).trim_ascii(),
            get: |row| row.$name.as_ref().map_or(Value::Empty, Cell::value),
            put: |row, value| {
                row.$name = Cell::of(value);
                row.$name.is_some()
            },
        }),+];

        impl Row {
            /// Gives its cells, in the order of the columns.
            pub fn cells<'a>(&'a self, mut take: impl FnMut(Value<'a>)) {
                $(take(self.$name.as_ref().map_or(Value::Empty, Cell::value));)+
            }

            /// What follows from moments, anew.
            pub(super) fn derive(&mut self) {
                $(
                    $(self.$name = columns!(@of self [$($moments)+]);)?
                    $(self.$name = ($($of)+)(&self.timeline);)?
                )+
            }
        }
    };
    (@type Text $type:ty) => { $type };
    (@type Text) => { String };
    (@type Bool) => { bool };
    (@type Count) => { u64 };
    (@type Time) => { Stamp };
    (@type $nanos:ident) => { i64 };
    (@origin [$moment:ident]) => { Origin::Moment(Moment::$moment) };
    (@origin [$from:ident to $to:ident]) => { Origin::Period(columns!(@period $from $to)) };
    (@origin) => { Origin::Own };
    (@period $from:ident $to:ident) => { Period { from: Moment::$from, to: Moment::$to } };
    (@of $row:ident [$moment:ident]) => { $row.timeline.time(Moment::$moment) };
    (@of $row:ident [$from:ident to $to:ident]) => { $row.timeline.nanos(columns!(@period $from $to)) };
}
pub(super) use columns;

/// What people call a column: its label, where it has one of its own.
pub(super) const fn label(label: &'static str, name: &'static str) -> &'static str {
    if label.is_empty() { name } else { label }
}
