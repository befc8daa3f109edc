//! The headers in which a hop tells the front, and the front its client, what they have stamped.
//!
//! Form: `key=value` pairs joined by `;`, stamps in epoch nanoseconds of the sender's clock, which
//! `clock` names (one random name a process, so that equal names mean one clock):
//! `clock=4bf9;now=…;arrival=…;forwarded=…;host=127.0.0.1:30000`. Unknown keys are skipped, a value
//! that does not parse is as if absent.

use crate::clock::Stamp;

/// Request header by which a client asks the front for [`FRONT_HEADER`] (value `1`).
pub const ASK_HEADER: &str = "x-queuescope-stamps";
/// Response header with the front's stamps, only for clients that asked.
pub const FRONT_HEADER: &str = "x-queuescope-stamps";
/// Response header with the hop's stamps; the front takes it off.
pub const HOP_HEADER: &str = "x-queuescope-hop";

/// What one process of ours stamped of a request, up to its sending of the response head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Name of the process's clock.
    pub clock: String,
    /// The clock at the moment the header was written.
    pub now: Option<Stamp>,
    /// The request head was read.
    pub arrival: Option<Stamp>,
    /// The last byte of the request body was read.
    pub request_end: Option<Stamp>,
    /// The head was sent upstream.
    pub forwarded: Option<Stamp>,
    /// The server it was sent to, `host:port`.
    pub host: Option<String>,
    /// How many times it was sent upstream.
    pub attempts: Option<u32>,
    /// The hop's own stamps, passed on by the front.
    pub hop: Option<Box<Stamps>>,
}
