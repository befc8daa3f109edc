//! TLS on the front's listener: the certificate and key, and what replaces them on a reload.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::trust;

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The server's certificate and those that lead to its root, PEM.
    pub cert: PathBuf,
    /// The private key of the first of them, PEM.
    pub key: PathBuf,
}

/// Takes TLS handshakes with the certificate that was read last.
pub struct Tls {
    files: Files,
    config: ArcSwap<ServerConfig>,
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key} = \"{path}\": {problem}")]
pub struct Error {
    /// The config key.
    pub key: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and what would be right.
    pub problem: String,
}

/// HTTP/2 by its name in TLS.
pub const HTTP2: &[u8] = b"h2";
/// What we speak, the best first.
const ALPN: [&[u8]; 2] = [HTTP2, b"http/1.1"];

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file, and what is wrong with it.
    pub fn load(files: Files) -> Result<Tls, Error> {
        let config = ArcSwap::from_pointee(files.read()?);
        Ok(Tls { files, config })
    }

    /// Puts in force what [`Files::read`] gave. Connections that stand keep what they have.
    pub fn put(&self, config: ServerConfig) {
        self.config.store(Arc::new(config));
    }

    /// Takes a handshake.
    ///
    /// # Errors
    /// What the client did wrong, or its leaving.
    pub async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.config.load_full())
            .accept(stream)
            .await
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Files {
    /// What the files say.
    ///
    /// # Errors
    /// The first that is wrong with them.
    pub fn read(&self) -> Result<ServerConfig, Error> {
        self.config(self.certs()?, self.key()?)
    }

    /// All that is wrong with the files.
    pub fn faults(&self) -> Vec<Error> {
        match (self.certs(), self.key()) {
            (Ok(certs), Ok(key)) => self.config(certs, key).err().into_iter().collect(),
            (certs, key) => certs.err().into_iter().chain(key.err()).collect(),
        }
    }

    fn certs(&self) -> Result<Vec<CertificateDer<'static>>, Error> {
        trust::certificates(&self.cert).map_err(|wrong| {
            let right =
                "give a PEM file that this process may read, with a -----BEGIN CERTIFICATE-----";
            Error::new("tls_cert", &self.cert, format!("{wrong}; {right}"))
        })
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, Error> {
        PrivateKeyDer::from_pem_file(&self.key).map_err(|error| {
            let problem = match error {
                pem::Error::Io(error) => {
                    format!("{error}; give a PEM file that this process may read")
                }
                pem::Error::NoItemsFound => {
                    "holds no private key; it must have a -----BEGIN PRIVATE KEY----- (PKCS#8, \
                     PKCS#1 or SEC1, not encrypted)"
                        .into()
                }
                error => format!("not a PEM file: {error}"),
            };
            Error::new("tls_key", &self.key, problem)
        })
    }

    fn config(
        &self,
        certs: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<ServerConfig, Error> {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|config| config.with_no_client_auth().with_single_cert(certs, key));
        let mut config = config.map_err(|error| self.pair(&error))?;
        config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
        Ok(config)
    }

    fn pair(&self, error: &rustls::Error) -> Error {
        let cert = self.cert.display();
        let problem = match error {
            rustls::Error::InconsistentKeys(_) => format!(
                "the key is not that of the certificate, tls_cert = \"{cert}\"; give the two that were made together"
            ),
            error => format!("{error}, with tls_cert = \"{cert}\""),
        };
        Error::new("tls_key", &self.key, problem)
    }
}

impl Error {
    fn new(key: &'static str, path: &Path, problem: String) -> Error {
        Error {
            key,
            path: path.into(),
            problem,
        }
    }
}
