//! TLS: how the certificate of an `https://` server is verified.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
};

use crate::trust::Roots;

use super::Target;
use super::socket::Socket;

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
pub const TLS_HINT: &str = "does the server speak TLS there? give the CA that signed its certificate, or that certificate itself \
    where it is a CA's own, with --ca FILE; --insecure takes any";

/// The only protocol that the client speaks.
const ALPN: &[u8] = b"http/1.1";

impl TlsArgs {
    /// Returns how to speak TLS to `target`; `None` if it speaks plain HTTP.
    ///
    /// # Errors
    /// Names the flag, the problem, and what is expected.
    pub fn tls(&self, target: &Target) -> Result<Option<Tls>, String> {
        if !target.is_tls() {
            let expected = "--ca and --insecure go with an https:// URL, which";
            return match self.ca.is_some() || self.insecure {
                true => Err(format!("{expected} {target} is not")),
                false => Ok(None),
            };
        }
        let name = ServerName::try_from(target.host().to_owned())
            .map_err(|_| format!("{target}: the host is no name that a certificate can be for"))?;
        Ok(Some(Tls {
            config: Arc::new(self.config()?),
            name,
        }))
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let roots = match &self.ca {
            _ if self.insecure => None,
            Some(path) => Some(
                Roots::file(path).map_err(|error| format!("--ca {}: {error}", path.display()))?,
            ),
            None => {
                let hint = "give the CA that signed the server's certificate with --ca FILE";
                Some(Roots::system().map_err(|error| format!("{error}; {hint}"))?)
            }
        };
        let by_roots = roots.as_ref().map(|roots| {
            let roots = Arc::new(roots.store());
            let builder = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            builder.build().map_err(|error| error.to_string())
        });
        let verifier = Verifier {
            by_roots: by_roots.transpose()?,
            roots,
            provider: provider.clone(),
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(config)
    }
}

impl Tls {
    /// Does the handshake.
    ///
    /// # Errors
    /// What rustls says of the server or its certificate, with a hint.
    pub(super) async fn connect(&self, socket: Socket) -> io::Result<TlsStream<Socket>> {
        let connector = TlsConnector::from(self.config.clone());
        let stream = connector.connect(self.name.clone(), socket).await;
        stream.map_err(|error| {
            let reason = reason(&error);
            io::Error::other(format!("the TLS handshake failed: {reason}; {TLS_HINT}"))
        })
    }
}

/// What rustls says, without the names of the types that a certificate's error may stand in.
fn reason(error: &io::Error) -> String {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(cause))) => {
            format!("invalid peer certificate: {cause}")
        }
        _ => error.to_string(),
    }
}

/// Whether a server's certificate was refused because it is a CA's.
fn is_ca_certificate(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity"))
}

/// Verifies a server's certificate; the signatures of the handshake are always verified.
#[derive(Debug)]
struct Verifier {
    /// `None` accepts every certificate.
    by_roots: Option<Arc<WebPkiServerVerifier>>,
    /// A server may present one of these itself: `openssl req -x509` makes certificates that are a server's and a CA's at once, which
    /// rustls alone refuses.
    roots: Option<Roots>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some((verifier, roots)) = self.by_roots.as_ref().zip(self.roots.as_ref()) else {
            return Ok(ServerCertVerified::assertion());
        };
        match verifier.verify_server_cert(presented, others, name, ocsp, now) {
            // rustls has checked the dates by then, but not the name.
            Err(rustls::Error::InvalidCertificate(error))
                if is_ca_certificate(&error) && roots.certificates().contains(presented) =>
            {
                verify_server_name(&ParsedCertificate::try_from(presented)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
