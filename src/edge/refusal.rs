//! Connections that end without a request: the log line, the answer, the reset.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::Answer;
use super::connection::Ending;
use super::socket::Transport;

/// How long a client has to read our answer and close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Logs that bytes made no request. One `log::warn!` for each kind, as the log counts repeated lines by their source line.
pub(super) fn log_no_request(peer: SocketAddr, ending: Option<Ending>) {
    match ending {
        Some(Ending::HeadTooLarge) => {
            log::warn!("client {peer}: its request's head is over request_head_max_bytes");
        }
        Some(Ending::HeadTooSlow) => {
            log::warn!("client {peer}: its request's head took longer than client_head_timeout_s");
        }
        Some(Ending::BadRequestLine) => {
            log::warn!("client {peer}: its request's target holds a control byte");
        }
        _ => log::warn!("client {peer}: no request: cut off within its head, or not HTTP/1.1"),
    }
}

/// The same for HTTP/2: a stream, or the whole connection.
pub(super) fn log_no_http2(peer: SocketAddr) {
    log::warn!("client {peer}: no request: what it sent is not HTTP/2");
}

/// Answers a head that is refused, and closes.
pub(super) async fn answer(mut io: Box<dyn Transport>, ending: Ending) {
    let answer = match ending {
        Ending::HeadTooLarge => Answer::refusing(431),
        Ending::BadRequestLine => Answer::refusing(400),
        _ => Answer::refusing(408),
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, write(&mut io, &answer)).await;
}

/// Closes a connection beyond the limit: with a 503 where `permit` lets it stay for that, else with a reset.
pub(super) async fn refuse(mut socket: TcpStream, permit: Option<OwnedSemaphorePermit>) {
    let Some(_permit) = permit else {
        return abort(&socket);
    };
    let answer = Answer::refusing(503);
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, write(&mut socket, &answer)).await;
}

/// Makes a socket's closing a reset.
pub(super) fn abort(socket: &TcpStream) {
    // It closes in any case.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

async fn write<S>(stream: &mut S, answer: &Answer) -> std::io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    stream
        .write_all(answer.message_on_its_own().as_bytes())
        .await?;
    stream.flush().await?;
    stream.shutdown().await?;
    // Closing on unread bytes would reset the connection under the answer.
    // On the heap, or each connection would hold as much.
    let mut rest = vec![0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
