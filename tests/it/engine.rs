//! What engines tell outside of their responses.

mod assembly;
mod forward;
mod join;
mod log;
mod otlp;
mod receiver;

use std::net::SocketAddr;

use crate::support::wire::Client;

/// Sends a message to a receiver of traces, and sees it acknowledged.
async fn send(receiver: SocketAddr, message: &[u8]) {
    let head = "content-type: application/x-protobuf\r\n";
    let mut client = Client::connect(receiver).await;
    let answer = client.ask("/v1/traces", head, message).await;
    assert_eq!(answer.status(), 200);
}
