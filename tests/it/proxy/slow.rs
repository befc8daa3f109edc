//! Limits on clients.
