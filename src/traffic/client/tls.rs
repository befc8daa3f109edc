//! TLS: how the certificate of an `https://` server is verified.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};

use crate::trust::Roots;

use super::Target;

/// How the certificate of an `https://` server is verified.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Where and to whom")]
pub struct TlsArgs {
    /// For https://: PEM of who may sign [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// For https://: take any certificate (others can read along)
    ///
    /// Whoever is on the way can read the requests, API key included, and answer them.
    #[arg(long, conflicts_with = "ca")]
    pub insecure: bool,
}

/// Does the TLS handshakes with one server.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    /// The server's name, which is sent (SNI) and verified.
    name: ServerName<'static>,
}

/// The warning about a run without verification.
pub const INSECURE_WARNING: &str = "--insecure: the server's certificate is NOT verified: anyone on the network path can \
    read the requests, API key included, and answer them";

/// Appended to the error of a failed handshake.
pub const TLS_HINT: &str = "does the server speak TLS there? give the CA that signed its certificate with --ca FILE; \
    --insecure takes any";

/// The only protocol that the client speaks.
const ALPN: &[u8] = b"http/1.1";

impl TlsArgs {
    /// Returns how to speak TLS to `target`; `None` if it speaks plain HTTP.
    ///
    /// # Errors
    /// Names the flag, the problem, and what is expected.
    pub fn tls(&self, target: &Target) -> Result<Option<Tls>, String> {
        if !target.address.is_tls {
            let expected = "--ca and --insecure go with an https:// URL, which";
            return match self.ca.is_some() || self.insecure {
                true => Err(format!("{expected} {target} is not")),
                false => Ok(None),
            };
        }
        let name = ServerName::try_from(target.address.host.clone())
            .map_err(|_| format!("{target}: the host is no name that a certificate can be for"))?;
        Ok(Some(Tls {
            config: Arc::new(self.config()?),
            name,
        }))
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.ca {
            _ if self.insecure => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Unverified(provider))),
            Some(path) => {
                let of_file = |error| format!("--ca {}: {error}", path.display());
                let roots = Roots::file(path).map_err(of_file)?;
                builder.with_root_certificates(roots.store())
            }
            None => {
                let hint = "give the CA that signed the server's certificate with --ca FILE";
                let roots = Roots::system().map_err(|error| format!("{error}; {hint}"))?;
                builder.with_root_certificates(roots.store())
            }
        };
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

impl Tls {
    /// Does the handshake.
    ///
    /// # Errors
    /// What rustls says of the server or its certificate, with a hint.
    pub(super) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        socket: S,
    ) -> io::Result<TlsStream<S>> {
        let connector = TlsConnector::from(self.config.clone());
        let stream = connector.connect(self.name.clone(), socket).await;
        stream.map_err(|error| {
            io::Error::other(format!("the TLS handshake failed: {error}; {TLS_HINT}"))
        })
    }
}

/// Accepts every certificate and every signature (`--insecure`).
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.0.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
