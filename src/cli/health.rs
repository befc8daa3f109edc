//! `queuescope health`: a health check for containers, whose image has no shell and no curl.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};

/// Ask a proxy's admin listener whether it lives.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Its admin listener
    #[arg(value_name = "IP:PORT", default_value = "127.0.0.1:8801")]
    admin: SocketAddr,
}

/// On connecting, and on each read and write.
const LIMIT: Duration = Duration::from_secs(2);
/// The head of the answer is less.
const HEAD: u64 = 4096;

/// Asks `/healthz`, which needs no token.
///
/// # Errors
/// When there is no answer, or another than 200.
pub fn ask(args: &Args) -> anyhow::Result<()> {
    let admin = args.admin;
    let exchange = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&admin, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let head = format!("GET /healthz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(HEAD).read_to_end(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().with_context(|| format!("no answer from {admin}"))?;
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.lines().next().unwrap_or_default();
        bail!("{admin} answers \"{status}\", not 200; is it the proxy's admin listener?");
    }
    Ok(())
}
