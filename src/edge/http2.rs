//! A client's HTTP/2 connection: its streams are requests, each in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::Digest;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{
    H2Accept, H2Options, HttpSession, default_h2_options, handshake,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::app::{App, ClientError, ClientLimits};
use super::client_stream::ClientStream;
use super::connection::{CONNECTION, Connection, Ending};
use super::listener::Listener;
use super::phase::Phase;
use super::refusal::log_no_http2;

mod session;

use session::{StreamSession, UNSENT};

/// Requests at once on a connection. A client waits with those beyond, unseen by us: more than any sends.
const STREAMS: u32 = 1000;
/// Bytes of a request body that may come before we ask for more: on a stream, on a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// How long an idle client has to close when the proxy does.
const LAST: Duration = Duration::from_secs(1);
/// Requests not fit to be taken, after which the connection is given up.
const REJECTED: u32 = 32;

/// Serves the streams of `stream` to the end of the connection.
pub(super) async fn serve<A: App>(
    stream: ClientStream,
    connection: &Arc<Connection>,
    listener: &Arc<Listener<A>>,
) {
    let app = &listener.app;
    let mut phase = listener.phase.clone();
    connection.set_http2();
    let shaken = handshake(Box::new(stream), Some(options(&connection.limits)));
    let mut client = match tokio::time::timeout(connection.limits.head, shaken).await {
        Ok(Ok(client)) => client,
        // Counted by the caller as a broken head.
        Ok(Err(_)) => return,
        Err(_) => return app.count(ClientError::HeadTooSlow),
    };
    let idle = Duration::from_secs(app.limits().idle_s);
    let digest = Arc::new(Digest::default());
    let mut streams = JoinSet::new();
    let mut rejected = 0;
    let mut known = Phase::Serving;
    while rejected < REJECTED {
        let is_closing = known >= Phase::Closing;
        let accepted = tokio::select! {
            biased;
            later = later_than(known, &mut phase) => {
                known = later;
                if known == Phase::Cut || (known == Phase::Closing && streams.is_empty()) {
                    return connection.forget_unparsed();
                }
                // Streams that the client has begun go on.
                client.graceful_shutdown();
                continue;
            }
            Some(_) = streams.join_next() => continue,
            accepted = HttpSession::from_h2_conn(&mut client, digest.clone()) => accepted,
            // Not every client closes.
            () = tokio::time::sleep(if is_closing { LAST } else { idle }), if streams.is_empty() => {
                return connection.forget_unparsed();
            }
        };
        match accepted {
            Ok(Some(H2Accept::Session(session))) => {
                connection.forget_unparsed();
                streams.spawn(exchange(session, connection, listener.clone()));
            }
            Ok(Some(H2Accept::Rejected)) => {
                app.count(ClientError::BrokenHead);
                log_no_http2(connection.peer);
                rejected += 1;
            }
            Ok(None) => {
                connection.forget_unparsed();
                break;
            }
            Err(error) => {
                if !is_clients_fault(&error) {
                    connection.forget_unparsed();
                }
                break;
            }
        }
    }
    drop(client);
    // Each stream sees for itself that the client is gone.
    while streams.join_next().await.is_some() {}
}

fn options(limits: &ClientLimits) -> H2Options {
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(UNSENT)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    options
}

/// Whether what the client sent is not HTTP/2; else its connection broke.
fn is_clients_fault(error: &pingora::Error) -> bool {
    let cause = error.cause.as_ref();
    let cause = cause.and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(h2::Error::is_library)
}

/// Waits for a phase after `known`; a proxy that is gone is cut off.
async fn later_than(known: Phase, phase: &mut watch::Receiver<Phase>) -> Phase {
    let later = phase.wait_for(|phase| *phase > known).await;
    later.map_or(Phase::Cut, |phase| *phase)
}

/// One request. What is known of its client is the stream's own: waits, stalls and limits are not shared.
fn exchange<A: App>(
    session: HttpSession,
    connection: &Connection,
    listener: Arc<Listener<A>>,
) -> impl Future<Output = ()> + Send + use<A> {
    let own = Arc::new(connection.for_stream());
    let session = ServerSession::new_custom(Box::new(StreamSession::new(session, own.clone())));
    CONNECTION.scope(own.clone(), async move {
        let shutdown = listener.stopped.subscribe();
        listener.app.answer(session, &shutdown).await;
        if let Some(error) = own.ending().and_then(Ending::client_error) {
            listener.app.count(error);
        }
    })
}
