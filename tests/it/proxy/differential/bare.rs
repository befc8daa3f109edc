//! Pingora's proxy with no hooks.

use async_trait::async_trait;
use pingora::apps::{HttpServerOptions, ServerApp};
use pingora::protocols::l4::stream::Stream;
use pingora::proxy::{HttpProxy, ProxyHttp, Session};
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use tokio::sync::watch;

use super::*;

struct To(SocketAddr);

#[async_trait]
impl ProxyHttp for To {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(
        &self,
        session: &mut Session,
        (): &mut (),
    ) -> pingora::Result<Box<HttpPeer>> {
        session.as_downstream_mut().set_pipelining_enabled(true);
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

/// Listens until it is dropped.
pub async fn start(upstream: SocketAddr) -> Listening {
    let conf = ServerConf {
        ca_file: Some("/dev/null".into()),
        ..ServerConf::default()
    };
    let mut proxy = HttpProxy::new(To(upstream), Arc::new(conf));
    let mut options = HttpServerOptions::default();
    options.h2c = true;
    proxy.server_options = Some(options);
    proxy.handle_init_modules();
    let proxy = Arc::new(proxy);
    Listening::start(move |_, stream| {
        let proxy = proxy.clone();
        async move {
            let (_stop, shutdown) = watch::channel(false);
            let stream = Box::new(Stream::from(stream));
            proxy.process_new(stream, &shutdown).await;
        }
    })
    .await
}
