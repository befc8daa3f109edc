//! `queuescope health`, by which a container's image asks after the proxy in it.

use std::net::TcpListener;

use crate::support::process::{Done, Process, queuescope, run_aside};
use crate::support::upstream::Upstream;

async fn health(admin: &str) -> Done {
    run_aside(queuescope(&["health", admin])).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_the_exit_code() {
    let upstream = Upstream::ok().await;
    let mut proxy = Process::start(upstream.addr, &[]);
    let admin = proxy.admin.to_string();
    let asked = health(&admin).await;
    assert_eq!((asked.code, asked.err.as_str()), (Some(0), ""));
    proxy.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(proxy.exit().await.success());
    let asked = health(&admin).await;
    assert_eq!(asked.code, Some(1));
    let begins = format!("error: no answer from {admin}: ");
    assert!(asked.err.starts_with(&begins), "{}", asked.err);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_answers_otherwise_or_not_at_all_is_not_well() {
    let other = Upstream::always("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
    let other = other.addr.to_string();
    let asked = health(&other).await;
    assert_eq!(asked.code, Some(1));
    assert!(asked.err.contains("answers 404, not 200"), "{}", asked.err);
    // Connections are taken, and nothing is ever said.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let asked = health(&silent.local_addr().unwrap().to_string()).await;
    assert_eq!(asked.code, Some(1));
    assert!(asked.err.contains("no answer from"), "{}", asked.err);
}
