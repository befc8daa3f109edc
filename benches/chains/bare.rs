//! A reverse proxy of Pingora's with nothing of ours in it: what any proxy built on it costs at least. The bench
//! starts itself once more to be it.

use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;
use pingora::Result;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;

use crate::chain::{Process, free_port, listening};

struct Bare {
    upstream: SocketAddr,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.upstream, false, String::new())))
    }
}

/// Says to the bench's own binary what it is to be: listen address, upstream, threads.
const ASKED: &str = "QUEUESCOPE_BARE_PINGORA";

/// If this process was started to be the proxy, it is that and never returns.
pub fn run_if_asked() {
    let Ok(asked) = std::env::var(ASKED) else {
        return;
    };
    let mut words = asked.split(' ');
    let mut word = || words.next().unwrap();
    let (listen, upstream, threads) = (word(), word(), word());
    let conf = ServerConf {
        threads: threads.parse().unwrap(),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let upstream = upstream.parse().unwrap();
    let mut service = http_proxy_service(&server.configuration, Bare { upstream });
    service.add_tcp(listen);
    server.add_service(service);
    server.run_forever();
}

/// Starts it before `upstream`, in a process of its own.
pub fn start(upstream: SocketAddr, threads: usize) -> (Process, SocketAddr) {
    let listen = free_port();
    let mut bench = Command::new(std::env::current_exe().unwrap());
    let asked = format!("{listen} {upstream} {threads}");
    listening(bench.env(ASKED, asked), listen)
}
