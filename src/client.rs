//! The socket side of the proxy: listening, client connections, TLS, limits on clients, hand-over to another process.
//! It knows bytes and HTTP, no request and no record.

pub mod answer;
pub mod exchange;
pub mod http1;
pub mod http2;
pub mod limits;
pub mod listener;
pub mod phase;
pub mod shortage;
pub mod stream;
pub mod takeover;
pub mod tls;
