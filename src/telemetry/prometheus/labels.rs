//! What labels tell apart.

use crate::request::names::names;

names! {
/// How far a request has come.
pub enum Progress {
    /// It has not been sent on.
    Receiving = "receiving",
    /// It was sent, and no token has come back.
    Waiting = "waiting",
    /// A token has come back.
    Streaming = "streaming",
}}

names! {
/// A limit that a client came to.
pub enum Limit {
    /// Bytes of a request's head.
    HeadBytes = "head_bytes",
    /// Time for a request's head, or for a TLS handshake.
    HeadTime = "head_time",
    /// Bytes of a request's body.
    BodyBytes = "body_bytes",
    /// Time for a request's body.
    BodyTime = "body_time",
    /// Time for which a response was held up.
    Stall = "stall",
    /// Connections.
    Connections = "connections",
}}

names! {
/// Why a row was lost.
pub enum Loss {
    /// The recorder's queue was full.
    QueueFull = "queue_full",
    /// The file could not be written.
    Write = "write",
    /// The recorder had ended.
    Shutdown = "shutdown",
}}

names! {
/// What decided who got a request, with the policy `cache_aware`.
pub enum ChosenBy {
    /// It was given the beginning of the prompt before.
    Prefix = "prefix",
    /// Too little of the prompt was known: the least loaded.
    Load = "load",
    /// The queues were too uneven: the least loaded.
    Imbalance = "imbalance",
    /// No prompt could be read: the least loaded.
    Unread = "unread",
}}

names! {
/// Why a trace is lost on its way to a collector.
pub enum Dropped {
    /// Too many waited.
    QueueFull = "queue_full",
    /// The collector did not take it.
    Rejected = "rejected",
    /// There was no connection to the collector.
    Unreachable = "unreachable",
    /// The collector did not answer in time.
    Timeout = "timeout",
    /// It still waited when the process ended.
    Shutdown = "shutdown",
}}

names! {
/// What became of something that an engine told.
pub enum Join {
    /// It is in its row.
    Joined = "joined",
    /// Its row had gone out without it.
    Late = "late",
    /// No row came for it.
    NoRow = "no_row",
    /// There was no room for it.
    NoRoom = "no_room",
}}

names! {
/// What came of a batch of servers' spans.
pub enum Batch {
    /// It was read.
    Taken = "taken",
    /// It is no message of OTLP traces.
    Malformed = "malformed",
    /// It is larger than a message may be.
    TooLarge = "too_large",
    /// There was no room for it.
    NoRoom = "no_room",
}}

names! {
/// Why a span of a message that was read is left out.
pub enum LeftOut {
    /// Its ids or times are none.
    Malformed = "malformed",
    /// It is larger than an engine's may be.
    TooLarge = "too_large",
}}
