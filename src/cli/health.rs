//! `queuescope health`: a health check for containers, whose image has no shell and no curl.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use tokio::time::timeout;

use crate::experiment::launch::Access;

/// Ask a proxy's admin listener whether it lives.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Its admin listener
    #[arg(value_name = "IP:PORT", default_value = "127.0.0.1:8801")]
    admin: SocketAddr,
}

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(2);

/// Asks `/healthz`, which needs no token.
///
/// # Errors
/// When there is no answer, or another than 200.
pub fn ask(args: &Args) -> anyhow::Result<()> {
    let (access, url) = (Access::default(), format!("http://{}", args.admin));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let asked = runtime.block_on(async { timeout(LIMIT, access.get(&url, "/healthz")).await });
    let admin = args.admin;
    let status = asked.unwrap_or_else(|_| Err(format!("not within {} s", LIMIT.as_secs())));
    let status = status.map_err(|why| anyhow!("no answer from {admin}: {why}"))?;
    ensure!(
        status == 200,
        "{admin} answers {status}, not 200; is it the proxy's admin listener?"
    );
    Ok(())
}
