//! The limits on clients.

use crate::keys::keys;
use crate::keys::values::{Seconds, Whole};

keys! {
/// The limits of a listener.
Limits {
    /// After how much idleness a client's connection is closed; whole seconds.
    client_idle_timeout_s: Whole<1, { u64::MAX }> = Whole::of::<75>(), Reload "--client-idle-timeout-s S" in "Limits";
    /// Limit on the silence of a client within its request body; 408 after it.
    client_read_timeout_s: Seconds = Seconds::of::<60>(), Reload "--client-read-timeout-s S" in "Limits";
    /// How long a client may take none of the response before it is given up.
    client_write_timeout_s: Seconds = Seconds::of::<300>(), Reload "--client-write-timeout-s S" in "Limits";
    /// How long the head of a request, or a TLS handshake, may take; 408 after it.
    client_head_timeout_s: Seconds = Seconds::of::<30>(), Reload "--client-head-timeout-s S" in "Limits";
    /// Limit on the total time that a request body is waited for; 408 after it. Only time in which the client has sent nothing
    /// counts, not that in which the upstream takes nothing. It is looked at when a piece comes: a client that sends nothing
    /// more is ended by client_read_timeout_s.
    client_body_timeout_s: Seconds = Seconds::of::<300>(), Reload "--client-body-timeout-s S" in "Limits";
    /// Limit on the total time that one response waits for its client to read; then it is reset. Only time in which our
    /// writes wait for the client counts: a stream may last for hours. A client that takes a byte a minute meets this
    /// limit; one that takes nothing meets client_write_timeout_s.
    client_stall_timeout_s: Seconds = Seconds::of::<900>(), Reload "--client-stall-timeout-s S" in "Limits";
    /// Limit on the head of a request, bytes; 431 above it.
    request_head_max_bytes: Whole<256, 1_048_575> = Whole::of::<65_536>(), Reload "--request-head-max-bytes BYTES" in "Limits";
    /// Limit on the body of a request, bytes; 413 above it. Bodies are not held, so it is that of sgl-router.
    request_body_max_bytes: Whole<1, { u64::MAX }> = Whole::of::<536_870_912>(), Reload "--request-body-max-bytes BYTES" in "Limits";
    /// Client connections that the front takes at once; further ones get a 503. Under TLS they get a reset. The limits on heads,
    /// bodies, held-up responses and connections are those of the front's clients; in a process that has hops only,
    /// those of each hop's. Each request of HTTP/2 counts beside its connection, which carries up to 1000 at a time;
    /// a further one is refused for the client to send again (REFUSED_STREAM).
    max_connections: Whole<1, 1_000_000> = Whole::of::<16_384>(), Restart "--max-connections N" in "Limits";
}}

impl Limits {
    /// Returns the limits for a client that sends no body any more, but what an upgraded connection carries.
    #[must_use]
    pub fn upgraded(self) -> Limits {
        Limits {
            client_read_timeout_s: Seconds::UNLIMITED,
            ..self.lifted()
        }
    }

    /// Returns the limits for a client that may be slow and large, as a router behind a front of ours. The head's timeout stays: a
    /// client that stops within a head is of no use.
    #[must_use]
    pub fn lifted(self) -> Limits {
        Limits {
            client_body_timeout_s: Seconds::UNLIMITED,
            client_stall_timeout_s: Seconds::UNLIMITED,
            request_head_max_bytes: Whole::UNLIMITED,
            request_body_max_bytes: Whole::UNLIMITED,
            max_connections: Whole::UNLIMITED,
            ..self
        }
    }
}
