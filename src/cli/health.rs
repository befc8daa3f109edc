//! `queuescope health`: a health check for containers, whose image has no shell and no curl.

use std::io::{BufRead, BufReader, Read, Write};
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
/// Bytes of a status line.
const LINE: u64 = 256;

/// Asks `/healthz`, which needs no token.
///
/// # Errors
/// When there is no answer, or another than 200.
pub fn ask(args: &Args) -> anyhow::Result<()> {
    let admin = args.admin;
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&admin, LIMIT)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let head = format!("GET /healthz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut status = String::new();
        BufReader::new(stream.take(LINE)).read_line(&mut status)?;
        Ok(status)
    };
    let status = exchange().with_context(|| format!("no answer from {admin}"))?;
    if !status.starts_with("HTTP/1.1 200 ") {
        let status = status.trim();
        bail!("{admin} answers \"{status}\", not 200; is it the proxy's admin listener?");
    }
    Ok(())
}
