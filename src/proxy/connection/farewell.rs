//! How connections end that never became a request.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::proxy::answer::Answer;
use crate::proxy::door::Place;

use super::Ending;
use super::stream::Io;

/// How long a client has to read our last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Says why a head was not taken, and closes.
pub(super) async fn answer(mut io: Io, ending: Ending) {
    let answer = match ending {
        Ending::HeadTooLarge => Answer::refusing(431),
        Ending::BadRequestLine => Answer::refusing(400),
        _ => Answer::refusing(408),
    };
    let _ = tokio::time::timeout(LAST_WORDS, say(&mut io, &answer)).await;
}

/// Closes a connection for which there is no room: with a 503 where there is a `place` for it meanwhile.
pub(super) async fn turn_away(mut socket: TcpStream, place: Option<Place>) {
    // Beyond some, not even those are kept who would read the answer.
    let Some(_place) = place else {
        return abort(&socket);
    };
    let answer = Answer::refusing(503);
    let _ = tokio::time::timeout(LAST_WORDS, say(&mut socket, &answer)).await;
}

/// Makes a socket's closing a reset.
pub(super) fn abort(socket: &TcpStream) {
    // It closes in any case.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

async fn say<S>(stream: &mut S, answer: &Answer) -> std::io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    stream
        .write_all(answer.message_on_its_own().as_bytes())
        .await?;
    stream.flush().await?;
    stream.shutdown().await?;
    // Closing on unread bytes would reset the connection under the answer.
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
