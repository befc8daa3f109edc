//! The socket side of the proxy: listening, client connections, TLS, limits on clients, hand-over to another process.
//! It knows bytes and HTTP, no request and no record.

pub mod accept;
pub mod answer;
pub mod app;
pub mod client_stream;
pub mod connection;
pub mod connection_limit;
pub mod http2;
pub mod listener;
pub mod phase;
pub mod pipelined;
pub mod refusal;
pub mod serve;
pub mod shortage;
pub mod socket;
pub mod takeover;
pub mod tls;
pub mod waits;
