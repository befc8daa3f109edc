//! Pingora's proxy with no hooks.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::apps::{HttpServerApp, ReusedHttpStream};
use pingora::protocols::Digest;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Accept, HttpSession, handshake};
use pingora::protocols::l4::stream::Stream;
use pingora::proxy::{HttpProxy, ProxyHttp, Session};
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::listening::Listening;

/// Listens until it is dropped.
pub struct Bare {
    pub addr: SocketAddr,
    _listening: Listening,
}

struct To(SocketAddr);

type Proxy = Arc<HttpProxy<To>>;

#[async_trait]
impl ProxyHttp for To {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> pingora::Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

impl Bare {
    pub async fn start(upstream: SocketAddr) -> Bare {
        let conf = ServerConf {
            ca_file: Some("/dev/null".into()),
            ..ServerConf::default()
        };
        let mut proxy = HttpProxy::new(To(upstream), Arc::new(conf));
        proxy.handle_init_modules();
        let proxy = Arc::new(proxy);
        let listening = Listening::start(move |_, stream| serve(stream, proxy.clone())).await;
        Bare {
            addr: listening.addr,
            _listening: listening,
        }
    }
}

async fn serve(stream: TcpStream, proxy: Proxy) {
    let (_stop, shutdown) = watch::channel(false);
    let mut first = [0; 3];
    // A client of this test sends more than that at once.
    let _ = stream.peek(&mut first).await;
    let stream = Box::new(Stream::from(stream));
    if &first == b"PRI" {
        let mut client = handshake(stream, None).await.unwrap();
        let digest = Arc::new(Digest::default());
        let mut streams = JoinSet::new();
        while let Ok(Some(accepted)) = HttpSession::from_h2_conn(&mut client, digest.clone()).await
        {
            let H2Accept::Session(session) = accepted else {
                continue;
            };
            let (proxy, shutdown) = (proxy.clone(), shutdown.clone());
            streams.spawn(async move {
                let session = ServerSession::new_http2(session);
                proxy.process_new_http(session, &shutdown).await;
            });
        }
        return;
    }
    let mut session = ServerSession::new_http1(stream);
    session.set_keepalive(Some(60));
    session.set_pipelining_enabled(true);
    while let Some(reused) = proxy.process_new_http(session, &shutdown).await {
        let (stream, settings) = ReusedHttpStream::consume(reused);
        session = ServerSession::new_http1(stream);
        if let Some(settings) = settings {
            settings.apply_to_session(&mut session);
        }
    }
}
