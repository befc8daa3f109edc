//! Reading the beginning of a request's body before its upstream is chosen, for policies that ask what its prompt says.
//!
//! What is read lies in Pingora's buffer for resending, which it sends first, as soon as there is a connection. It holds
//! [`HOLDS`] bytes; with one more it would lose all of them.

use http::header::EXPECT;
use pingora::proxy::Session;
use pingora::{Error, Result};

use crate::edge::connection::{Connection, PIECE};
use crate::request::endpoint::Endpoint;
use crate::request::prompt_blocks::PromptBlocks;

/// Bytes that Pingora's buffer holds (`BODY_BUF_LIMIT`).
const HOLDS: usize = 64 * 1024;
/// Bytes of a body after which no more is read.
const MOST: usize = 32 * 1024;
/// Bytes of the head of a request whose body is read: not more than as many of its body have been read with it, and that
/// is the largest piece.
const HEAD_MOST: usize = 32 * 1024;
const _: () = assert!(PIECE <= HEAD_MOST && MOST + HEAD_MOST <= HOLDS);

/// The hashes of the blocks that the prompt of a request to `endpoint` begins with: read from the body until they are known,
/// [`MOST`] bytes have come, or the body is over. None where it cannot be waited for: a client that expects
/// `100 Continue` waits itself, and hears it of the upstream.
///
/// # Errors
/// As reading a body later: the client left, or was too slow; and what `check` finds of each piece, which is told whether it
/// is the last.
pub async fn blocks(
    session: &mut Session,
    endpoint: Endpoint,
    mut check: impl FnMut(&Session, bool) -> Result<()>,
) -> Result<Vec<u64>> {
    let mut prompt = PromptBlocks::new(endpoint);
    let head = session.as_http1();
    let head = head.map_or(0, |http1| http1.get_headers_raw_bytes().len());
    if head > HEAD_MOST || session.get_header(EXPECT).is_some() {
        return Ok(prompt.into_blocks());
    }
    let connection = Connection::current();
    let in_pieces = |yes| {
        if let Some(connection) = &connection {
            connection.read_in_pieces(yes);
        }
    };
    session.enable_retry_buffering();
    in_pieces(true);
    let mut read = 0;
    while read < MOST && !prompt.is_known() && !session.is_body_done() {
        let piece = session.read_request_body().await;
        let piece = piece.map_err(|error| error.into_down())?;
        let is_end = piece.is_none() || session.is_body_done();
        let piece = piece.unwrap_or_default();
        prompt.feed(&piece);
        read += piece.len();
        check(session, is_end)?;
        if is_end {
            break;
        }
    }
    in_pieces(false);
    if session.retry_buffer_truncated() {
        // Sent on, the body would lack its beginning.
        return Error::e_explain(pingora::InternalError, "the body read ahead is lost");
    }
    Ok(prompt.into_blocks())
}
