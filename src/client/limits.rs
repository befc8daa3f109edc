//! The limits on clients.

use crate::keys::keys;
use crate::keys::values::{self, Seconds, Whole};

keys! {
/// The limits of a listener.
Limits {
    /// After how much idleness a client's connection is closed; whole seconds.
    client_idle_timeout_s: Whole<1, { u64::MAX }> as values::whole_seconds = Whole::of::<75>(), Reload "--client-idle-timeout-s S" in "Limits";
    /// Limit on the silence of a client within its request body; 408 after it.
    client_read_timeout_s: Seconds = Seconds::of::<60>(), Reload "--client-read-timeout-s S" in "Limits";
    /// How long the head of a request, or a TLS handshake, may take; 408 after it.
    client_head_timeout_s: Seconds = Seconds::of::<30>(), Reload "--client-head-timeout-s S" in "Limits";
    /// Limit on the total time that the proxy waits for the client to send a request's body; 408 after it. Time in which the
    /// upstream does not read does not count. It is checked when a piece arrives: a client that sends nothing more meets
    /// client_read_timeout_s.
    client_body_timeout_s: Seconds = Seconds::of::<300>(), Reload "--client-body-timeout-s S" in "Limits";
    /// Limit on the total time that a response waits for its client to read; after it the response is reset. Other time does
    /// not count, so a stream may last for hours. A client that reads a byte a minute meets this limit, as one that reads nothing.
    /// On an upgraded connection (101) each wait may last as long.
    client_stall_timeout_s: Seconds = Seconds::of::<900>(), Reload "--client-stall-timeout-s S" in "Limits";
    /// Limit on the head of a request, bytes; 431 above it.
    request_head_max_bytes: Whole<256, 1_048_575> as values::bytes = Whole::of::<65_536>(), Reload "--request-head-max-bytes BYTES" in "Limits";
    /// Limit on the body of a request, bytes; 413 above it. Bodies are not held, so it is that of sgl-router.
    request_body_max_bytes: Whole<1, { u64::MAX }> as values::bytes = Whole::of::<536_870_912>(), Reload "--request-body-max-bytes BYTES" in "Limits";
    /// The most connections of clients at once; further ones get a 503, under TLS a reset. A request of HTTP/2 counts as one more,
    /// and is refused beyond the limit or beyond 1000 of its connection, for the client to send again (REFUSED_STREAM). This limit and
    /// those on heads and bodies hold for the front; hops have them only in a process without a front (but none takes
    /// a head of 1 MiB).
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
    /// client that stops within a head is of no use. So does Pingora's own limit on its size: a head is held whole.
    #[must_use]
    pub fn lifted(self) -> Limits {
        Limits {
            client_body_timeout_s: Seconds::UNLIMITED,
            request_head_max_bytes: Whole::of::<1_048_575>(),
            request_body_max_bytes: Whole::UNLIMITED,
            max_connections: Whole::UNLIMITED,
            ..self
        }
    }
}
