//! Where a proxy is in its life.

/// Each goes further than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It serves.
    Serving,
    /// Another process has taken the listeners over. Idle connections stay open until their next request, whose
    /// response says that the connection closes.
    HandedOver,
    /// It takes no new connections, and says on each response that the connection closes.
    Draining,
    /// Idle connections are closed too.
    Closing,
    /// Everything is cut off.
    Cut,
}
