//! Client connections of the proxy: listening, TLS, HTTP/1.1 and HTTP/2, limits on clients, takeover by another process.
//! It knows nothing of what requests ask for, nor of records.

pub mod exchange;
pub mod http1;
pub mod http2;
pub mod limits;
pub mod listener;
pub mod socket;
pub mod takeover;
