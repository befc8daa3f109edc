//! The phases of a proxy's life.

/// A phase of a proxy's life, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The proxy serves.
    Serving,
    /// Another process has taken the listeners over. Idle connections stay open until their next response, which closes them.
    HandedOver,
    /// No new connections are accepted, and each response closes its connection.
    Draining,
    /// Idle connections are closed too.
    Closing,
    /// Open requests are cut off.
    Aborting,
}
