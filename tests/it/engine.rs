//! What engines tell outside of their responses.

mod assembly;
mod forward;
mod join;
mod receiver;

use std::net::SocketAddr;

use crate::support::spans;
use crate::support::wire::Client;

/// The header line of a message of traces.
const PROTOBUF: &str = "content-type: application/x-protobuf\r\n";

/// Sends a message to a receiver of traces, and sees it acknowledged.
pub async fn send(receiver: SocketAddr, message: &[u8]) {
    let mut client = Client::connect(receiver).await;
    let answer = client.ask("/v1/traces", PROTOBUF, message).await;
    assert_eq!(answer.status(), 200);
}

/// A message with the five spans of a streamed chat.
fn chat() -> Vec<u8> {
    spans::message(&spans::named("direct/chat_stream").spans)
}
