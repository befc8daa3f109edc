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

use super::context::Context;
use super::limits;
use super::shared::Shared;

/// Bytes that Pingora's buffer holds (`BODY_BUF_LIMIT`).
const HOLDS: usize = 64 * 1024;
/// Bytes of a body after which no more is read.
const MOST: usize = 32 * 1024;
/// Bytes of the head of a request whose body is read: not more than as many of its body have been read with it, and that
/// is the largest piece.
const HEAD_MOST: usize = 32 * 1024;
const _: () = assert!(PIECE <= HEAD_MOST && MOST + HEAD_MOST <= HOLDS);

/// Reads as much of a request's body as tells which upstream is to get it, if it is one to an `endpoint`.
///
/// # Errors
/// As reading the body later: the client left, or came to a limit.
pub async fn read(
    session: &mut Session,
    context: &mut Context,
    endpoint: Option<Endpoint>,
    shared: &Shared,
) -> Result<()> {
    let Some(endpoint) = endpoint else {
        context.prompt = Some(Vec::new());
        return Ok(());
    };
    let (began, limits) = (shared.clock.now(), shared.settings.load().limits);
    let blocks = blocks(session, endpoint, |session, is_end| {
        if is_end {
            context.request_read();
        }
        limits::check_body(session, &limits, is_end, &shared.metrics)
    });
    let blocks = blocks.await;
    context.prompt_waited(began);
    context.prompt = Some(blocks?);
    Ok(())
}

/// The hashes of the blocks that a prompt begins with: read from the body until they are known, [`MOST`] bytes have come, or
/// the body is over. None where it cannot be waited for: a client that expects `100 Continue` waits itself, and hears it of
/// the upstream. `check` is told of each piece whether it is the last.
async fn blocks(
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
