//! `queuescope health`: a health check for containers, as their image has no shell and no curl.

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

const TIMEOUT: Duration = Duration::from_secs(2);

/// Requests `/healthz`, which needs no token.
///
/// # Errors
/// There is no response, or its status is not 200.
pub fn check(args: &Args) -> anyhow::Result<()> {
    let (access, url) = (Access::default(), format!("http://{}", args.admin));
    let runtime = tokio::runtime::Runtime::new()?;
    let status = runtime.block_on(async { timeout(TIMEOUT, access.get(&url, "/healthz")).await });
    let admin = args.admin;
    let status = status.unwrap_or_else(|_| Err(format!("not within {} s", TIMEOUT.as_secs())));
    let status = status.map_err(|error| anyhow!("no answer from {admin}: {error}"))?;
    ensure!(
        status == 200,
        "{admin} answers {status}, not 200; is it the proxy's admin listener?"
    );
    Ok(())
}
