//! The real routers, as `scripts/router.sh` installs them.

use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::admin::get;
use super::wire::PATIENCE;

/// Which router; both are started as `smg launch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// sglang-router 0.3.2.
    Sglang032,
    /// smg 1.13.0.
    Smg113,
}

impl Which {
    pub const ALL: [Which; 2] = [Which::Sglang032, Which::Smg113];

    /// The installed program; a test without it fails with what to do.
    pub fn program(self) -> PathBuf {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join(match self {
            Which::Sglang032 => ".tools/sglang-router-0.3.2/bin/smg",
            Which::Smg113 => ".tools/smg-1.13.0/bin/smg",
        });
        assert!(
            program.exists(),
            "the real router is missing ({program:?}): run `bash scripts/router.sh`"
        );
        program
    }
}

/// A running router. Ended when dropped.
pub struct Router {
    pub addr: SocketAddr,
    child: Child,
}

/// A port of this machine that nobody listens on, below those that the system gives to outgoing
/// connections and to port 0: between this look and its use no other test can be given it.
pub fn free_port() -> SocketAddr {
    const PORTS: Range<u32> = 12_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Several processes of tests begin at different places.
    let offset = std::process::id().wrapping_mul(7919);
    loop {
        let count = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + count % PORTS.len() as u32;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port as u16)) {
            return listener.local_addr().unwrap();
        }
    }
}

impl Router {
    /// Starts `smg launch` on `addr` before `workers` and waits until it would serve. `more` are flags; without
    /// `--policy` among them it is round robin.
    pub async fn start_at(
        which: Which,
        addr: SocketAddr,
        workers: &[SocketAddr],
        more: &[&str],
    ) -> Router {
        let metrics = free_port();
        let policy: &[&str] = match more.contains(&"--policy") {
            true => &[],
            false => &["--policy", "round_robin"],
        };
        let urls = workers.iter().map(|worker| format!("http://{worker}"));
        let (port, metrics) = (addr.port(), metrics.port());
        let line = format!("launch --host 127.0.0.1 --port {port} --prometheus-port {metrics}");
        let child = Command::new(which.program())
            .args(line.split(' '))
            .args(policy)
            .arg("--worker-urls")
            .args(urls)
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut router = Router { addr, child };
        for _ in 0..PATIENCE.as_millis() / 20 {
            let ended = router.child.try_wait().unwrap();
            assert_eq!(ended, None, "the router ended at once");
            if router.serves(workers.len()).await {
                return router;
            }
            sleep(Duration::from_millis(20)).await;
        }
        panic!("the router did not find {workers:?} healthy");
    }

    /// Whether it listens and has found so many workers healthy.
    async fn serves(&self, workers: usize) -> bool {
        if tokio::net::TcpStream::connect(self.addr).await.is_err() {
            return false;
        }
        let answer = get(self.addr, "/workers").await;
        let healthy = answer.text().matches("\"is_healthy\":true").count();
        answer.status() == 200 && healthy == workers
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
