//! The description of a column, and the macro that makes the table of columns.

pub use super::cell::Value;

use super::timeline::{Moment, Period};

/// The unit of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Text.
    Text,
    /// `True` or `False`.
    Bool,
    /// A count.
    Count,
    /// A duration in seconds for which summaries have quantiles.
    Latency,
    /// A duration in seconds.
    Seconds,
    /// A moment, in seconds from the file's time base.
    Time,
}

/// What a value belongs to. In sums and quantiles a request's value counts once, however many rows it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The request: the same in the rows of all its sequences.
    Request,
    /// The sequence.
    Sequence,
}

/// What a column is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A moment, on the row's clock if the clocks compare.
    Moment(Moment),
    /// The time between two moments.
    Period(Period),
    /// Anything else.
    Own,
}

/// Makes, from a table of columns, the struct [`Row`](super::row::Row) with a field per column, the table [`COLUMNS`](super::columns::COLUMNS),
/// and an index into it for each ([`ColumnId`](super::columns::ColumnId)).
///
/// A line: `name "label": Unit of Scope origin`, its help above it. The label may be left out if it equals the name; a text
/// column with a type of its own is `Text<Type>`. The origin is `[Moment]`, `[Moment to Moment]` or `(function)` of the timeline;
/// it is left out if the value follows from something else.
macro_rules! columns {
    ($(
        $(#[doc = $help:literal])+
        $name:ident $($label:literal)?: $unit:ident $(<$type:ty>)? of $scope:ident
        $([$($moments:tt)+])? $(($($of:tt)+))?
    )+) => {
        /// What is known of a generated sequence and of its request: a field per column, and what no column shows. Fields that
        /// follow from others are set when the request has ended.
        #[derive(Clone, Debug, Default)]
        pub struct Row {
            $($(#[doc = $help])+ pub $name: Option<columns!(@type $unit $($type)?)>,)+
            /// The moments, and the relations of their clocks.
            pub timeline: Timeline,
            /// The sequence's index within its request.
            pub index: u32,
            /// The number of sequences of the request.
            pub sequences: u32,
            /// What no column shows: known only in the process that saw the request.
            pub internal: Internal,
        }

        /// A column, by its index in [`COLUMNS`].
        #[expect(non_camel_case_types, reason = "a variant is called as its column is")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ColumnId {
            $($(#[doc = $help])+ $name,)+
        }

        /// Every column, in the order of the CSV.
        pub static COLUMNS: [Column; [$(stringify!($name)),+].len()] = [$(Column {
            id: ColumnId::$name,
            name: stringify!($name),
            label: columns!(@label $name $($label)?),
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
            /// Passes the row's cells to `take`, in the order of the columns.
            pub fn cells<'a>(&'a self, mut take: impl FnMut(Value<'a>)) {
                $(take(self.$name.as_ref().map_or(Value::Empty, Cell::value));)+
            }

            /// Computes the columns that follow from moments.
            pub(super) fn derive(&mut self) {
                $(
                    $(self.$name = columns!(@of self [$($moments)+]);)?
                    $(self.$name = ($($of)+)(&self.timeline);)?
                )+
            }
        }
    };
    (@label $name:ident) => { stringify!($name) };
    (@label $name:ident $label:literal) => { $label };
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
