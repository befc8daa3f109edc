//! `queuescope health`, by which a container's image asks after the proxy in it.

use std::net::TcpListener;

use super::*;

async fn health(admin: SocketAddr) -> Done {
    run_aside(queuescope(&["health", &admin.to_string()])).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_the_exit_code() {
    let upstream = Upstream::ok().await;
    let mut proxy = Process::start(upstream.addr, &[]);
    let asked = health(proxy.admin).await;
    assert_eq!((asked.code, asked.err.as_str()), (Some(0), ""));
    proxy.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(proxy.exit().await.success());
    let other = Upstream::always("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
    // Connections are taken, and nothing is ever said.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    for (admin, wrong) in [
        (proxy.admin, "no answer ("),
        (other.addr, "/healthz answers 404, not 200;"),
        (silent, "no answer ("),
    ] {
        let asked = health(admin).await;
        assert_eq!(asked.code, Some(1));
        assert_says(&asked.err, &format!("error: IP:PORT {admin}: {wrong}"));
        assert_says(&asked.err, "; give the admin listener (key admin)");
    }
}
