//! TLS of the front's listener: certificate, key and handshakes.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pingora::listeners::tls::Acceptor;
use pingora::protocols::{ALPN, Ssl, Stream};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};

use crate::trust;

use super::socket::Socket;

/// The certificate and key that were read last. A reload replaces them for new connections.
pub type Tls = ArcSwap<ServerConfig>;

/// The protocols of ALPN, the preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Performs the handshake with a client. Returns its stream, and whether HTTP/2 was agreed on.
///
/// # Errors
/// The handshake failed, or the client is gone.
pub async fn accept(tls: &Tls, socket: Socket) -> pingora::Result<(Stream, bool)> {
    let acceptor = Acceptor::from_server_config(tls.load_full());
    let stream = acceptor.tls_handshake(socket).await?;
    let is_http2 = stream.selected_alpn_proto() == Some(ALPN::H2);
    Ok((Box::new(stream), is_http2))
}

/// Reads the PEM files `tls_cert`, the server's certificate with those up to its root, and `tls_key`, the private key of the first.
///
/// # Errors
/// All problems of the files, each with its key.
pub fn load(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, Vec<(&'static str, String)>> {
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
