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
    #[arg(value_name = "IP:PORT", default_value = "127.0.0.1:8801", value_parser = address)]
    admin: SocketAddr,
}

/// Parses an address, also with `localhost` or as a URL, as the proxy's config and log have it.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let plain = text.strip_prefix("http://").unwrap_or(text);
    let plain = plain
        .trim_end_matches('/')
        .replace("localhost:", "127.0.0.1:");
    plain
        .parse()
        .map_err(|_| "must be IP:PORT, such as 127.0.0.1:8801")
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// Requests `/healthz`, which needs no token.
///
/// # Errors
/// There is no response, or its status is not 200.
pub fn check(args: &Args) -> anyhow::Result<()> {
    let (access, url) = (Access::default(), format!("http://{}", args.admin));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_parsed_as_in_the_log_and_the_config() {
        for text in ["127.0.0.1:8801", "http://127.0.0.1:8801/", "localhost:8801"] {
            assert_eq!(address(text), Ok(([127, 0, 0, 1], 8801).into()), "{text}");
        }
        for text in ["", "8801", "gpu1:8801", "https://127.0.0.1:8801"] {
            let error = address(text).unwrap_err();
            assert!(error.contains("must be IP:PORT"), "{text}: {error}");
        }
    }
}
