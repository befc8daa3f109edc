//! The values of labels.

use crate::request::names::names;

names! {
/// The phase of a request in flight.
pub enum RequestPhase {
    /// It has not been sent upstream.
    Receiving = "receiving",
    /// It was sent, and no token has been received.
    Waiting = "waiting",
    /// A token has been received.
    Streaming = "streaming",
}}

names! {
/// What decided the choice of an upstream by the policy `cache_aware`.
pub enum ChosenBy {
    /// It was sent the beginning of the prompt before.
    Prefix = "prefix",
    /// Too little of the prompt was known: the least loaded.
    Load = "load",
    /// The queues were too uneven: the least loaded.
    Imbalance = "imbalance",
    /// No prompt could be read: the least loaded.
    Unread = "unread",
}}

names! {
/// Why a row or a trace was lost.
pub enum Dropped {
    /// The queue was full.
    QueueFull = "queue_full",
    /// The file could not be written.
    Write = "write",
    /// The collector rejected it.
    Rejected = "rejected",
    /// There was no connection to the collector.
    Unreachable = "unreachable",
    /// The collector did not answer in time.
    Timeout = "timeout",
    /// It was still queued when the process ended, or came later.
    Shutdown = "shutdown",
}}

names! {
/// What became of an engine report.
pub enum Join {
    /// It was joined with its row.
    Joined = "joined",
    /// Its row had been recorded without it.
    Late = "late",
    /// It matched no row.
    NoRow = "no_row",
    /// There was no room for it.
    NoRoom = "no_room",
}}

names! {
/// What became of a batch of servers' spans.
pub enum Batch {
    /// It was accepted.
    Taken = "taken",
    /// It is not an OTLP message of traces.
    Malformed = "malformed",
    /// It exceeds the maximum size.
    TooLarge = "too_large",
    /// There was no room for it.
    NoRoom = "no_room",
}}

names! {
/// Why a span of an accepted batch was left out.
pub enum LeftOut {
    /// Its ids or times are invalid.
    Malformed = "malformed",
    /// It exceeds the maximum size.
    TooLarge = "too_large",
}}
