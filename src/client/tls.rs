//! TLS on the front's listener: the certificate and key, and handshakes.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pingora::listeners::tls::Acceptor;
use pingora::protocols::{ALPN, Ssl, Stream};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::config_error::ConfigError;
use crate::trust;

use super::stream::Socket;

/// The certificate and key that were read last. A reload replaces them; connections that stand keep what they have.
pub type Tls = ArcSwap<ServerConfig>;

/// What we speak, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Takes a handshake with a client. Gives its stream, and whether HTTP/2 was agreed on.
///
/// # Errors
/// What the client did wrong, or its leaving.
pub async fn accept(tls: &Tls, socket: Socket) -> pingora::Result<(Stream, bool)> {
    let acceptor = Acceptor::from_server_config(tls.load_full());
    let stream = acceptor.tls_handshake(socket).await?;
    let is_http2 = stream.selected_alpn_proto() == Some(ALPN::H2);
    Ok((Box::new(stream), is_http2))
}

/// Reads `tls_cert`, the server's certificate and those that lead to its root, and `tls_key`, the private key of the first
/// of them; both PEM.
///
/// # Errors
/// All that is wrong with the files, and what would be right.
pub fn load(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, Vec<ConfigError>> {
    let wrong_key = |problem| ConfigError::text("tls_key", key.display(), problem);
    let certs = trust::certificates(cert).map_err(|wrong| {
        let right =
            "give a PEM file that this process may read, with a -----BEGIN CERTIFICATE-----";
        ConfigError::text("tls_cert", cert.display(), format!("{wrong}; {right}"))
    });
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong_key(of_pem(error)));
    let (certs, secret) = match (certs, secret) {
        (Ok(certs), Ok(secret)) => (certs, secret),
        (certs, secret) => return Err(certs.err().into_iter().chain(secret.err()).collect()),
    };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(certs, secret));
    let mut config = config.map_err(|error| {
        let cert = cert.display();
        vec![wrong_key(match error {
            rustls::Error::InconsistentKeys(_) => format!(
                "the key is not that of the certificate, tls_cert = \"{cert}\"; give the two that were made together"
            ),
            error => format!("{error}, with tls_cert = \"{cert}\""),
        })]
    })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(Arc::new(config))
}

fn of_pem(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("{error}; give a PEM file that this process may read"),
        pem::Error::NoItemsFound => {
            "holds no private key; it must have a -----BEGIN PRIVATE KEY----- (PKCS#8, PKCS#1 or SEC1, not encrypted)".into()
        }
        error => format!("not a PEM file: {error}"),
    }
}
