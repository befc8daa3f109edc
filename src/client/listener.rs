//! Listening sockets, bound or taken over, with the certificate of the front's; the phases of the proxy that accepts, and what it says
//! when it has no files left for connections.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};

use crate::trust;

#[cfg(test)]
mod tests;

/// A listening socket and its key.
#[derive(Clone, Debug)]
pub struct ListenSocket {
    /// The key it was configured under: `listen`, `admin`, `worker NAME`.
    pub name: String,
    /// Its address as configured; the port may be 0.
    pub configured: SocketAddr,
    /// Its actual address.
    pub address: SocketAddr,
    /// The socket. It closes with its last holder.
    pub socket: Arc<TcpListener>,
}

/// The certificate and key that were read last. A reload replaces them for new connections.
pub type Tls = ArcSwap<ServerConfig>;

/// A phase of a proxy's life, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The proxy serves.
    Serving,
    /// Another process has taken the listeners over. Idle connections stay open until their next response, which closes them.
    HandedOver,
    /// No new connections are accepted, and each response closes its connection.
    Draining,
    /// Idle connections are closed too.
    Closing,
    /// Open requests are cut off.
    Aborting,
}

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// The pause after an accept that failed for a limit.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The protocols of ALPN, the preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

impl ListenSocket {
    /// Takes `inherited`, a socket of another process, or binds a new one.
    ///
    /// # Errors
    /// Why the address cannot be listened on.
    pub fn new(
        name: &str,
        configured: SocketAddr,
        inherited: Option<StdListener>,
    ) -> io::Result<ListenSocket> {
        let socket = match inherited {
            Some(socket) => socket,
            // With SO_REUSEADDR: a restart does not wait for old connections in TIME_WAIT.
            None => StdListener::bind(configured)?,
        };
        SockRef::from(&socket).listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let socket = TcpListener::from_std(socket)?;
        Ok(ListenSocket {
            name: name.to_owned(),
            configured,
            address: socket.local_addr()?,
            socket: Arc::new(socket),
        })
    }

    /// Accepts the connections that wait: closing the socket would reset them.
    pub fn backlog(&self) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
        // Not by the runtime, which may not know of the latest yet.
        let socket = SockRef::from(&*self.socket);
        let accepted = (0..BACKLOG).map_while(move |_| socket.accept().ok());
        accepted.filter_map(|(stream, peer)| {
            stream.set_nonblocking(true).ok()?;
            let stream = TcpStream::from_std(stream.into()).ok()?;
            Some((stream, peer.as_socket()?))
        })
    }
}

/// Accepts the next connection, and takes those that have ended out of `connections`. `name` is the listener's, a prefix in the log.
pub async fn accept(
    socket: &TcpListener,
    connections: &mut JoinSet<()>,
    name: &str,
) -> (TcpStream, SocketAddr) {
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok(accepted) => return accepted,
            Err(error) => accept_failed(connections, name, &error).await,
        }
    }
}

/// Logs that an accept failed, and waits if the next one would fail too.
async fn accept_failed(connections: &mut JoinSet<()>, name: &str, error: &io::Error) {
    let hint = hint(error);
    log::warn!("{name}cannot accept a connection: {error}{hint}");
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    // Those are of one connection. Others are mostly of file descriptors: connections that end free some.
    if !matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted
    ) {
        tokio::select! {
            () = tokio::time::sleep(ACCEPT_PAUSE) => {}
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Returns a hint against a system error, to be appended to its text; empty if there is none.
pub fn hint(error: &io::Error) -> String {
    if error.raw_os_error() != Some(Errno::EMFILE as i32) {
        return String::new();
    }
    let limit = getrlimit(Resource::RLIMIT_NOFILE);
    let limit = limit.map_or_else(|_| "no more".into(), |(soft, _)| soft.to_string());
    format!(
        "; this process may have {limit} files open, and a request takes two: raise the limit (ulimit -n, \
         LimitNOFILE= of systemd, --ulimit nofile= of docker), or lower max_connections"
    )
}

/// Reads the PEM files `tls_cert`, the server's certificate with those up to its root, and `tls_key`, the private key of the first.
///
/// # Errors
/// All problems of the files, each with its key.
pub fn load_tls(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, Vec<(&'static str, String)>> {
    let certs = trust::certificates(cert).map_err(|problem| {
        let hint = "give a PEM file that this process may read, with a -----BEGIN CERTIFICATE-----";
        ("tls_cert", format!("{problem}; {hint}"))
    });
    let secret = PrivateKeyDer::from_pem_file(key);
    let secret = secret.map_err(|error| ("tls_key", pem_problem(error)));
    let (certs, secret) = match (certs, secret) {
        (Ok(certs), Ok(secret)) => (certs, secret),
        (certs, secret) => return Err(certs.err().into_iter().chain(secret.err()).collect()),
    };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(certs, secret));
    let mut config = config.map_err(|error| {
        let cert = cert.display();
        let problem = format!(
            "cannot be used with tls_cert = \"{cert}\" ({error}); give a certificate and the key that was made with it"
        );
        vec![("tls_key", problem)]
    })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}

fn pem_problem(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("{error}; give a PEM file that this process may read"),
        pem::Error::NoItemsFound => {
            "holds no private key; it must have a -----BEGIN PRIVATE KEY----- (PKCS#8, PKCS#1 or SEC1, not encrypted)".into()
        }
        error => format!("not a PEM file: {error}"),
    }
}
