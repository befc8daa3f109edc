//! `https://`: whose certificate is taken.

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

/// Takes handshakes with one server.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
    /// Asked for (SNI) and verified.
    name: ServerName<'static>,
}

/// What a run without verification must not keep to itself.
pub const INSECURE: &str = "--insecure: the server's certificate is NOT verified: anyone on the network path can \
    read the requests, API key included, and answer them";

/// What may help where a handshake fails, for whatever reason.
const HELP: &str = "does the server speak TLS there? give the CA that signed its certificate, or that certificate itself \
    where it is a CA's own, with --ca FILE; --insecure takes any";

/// HTTP/1.1 is all we speak.
const ALPN: &[u8] = b"http/1.1";

impl TlsArgs {
    /// How `target` is spoken to; `None` is in the clear.
    ///
    /// # Errors
    /// The flag, what is wrong, and what would be right.
    pub fn tls(&self, target: &Target) -> Result<Option<Tls>, String> {
        if !target.is_tls() {
            let right = "--ca and --insecure go with an https:// URL, which";
            let is_given = self.ca.is_some() || self.insecure;
            return if is_given {
                Err(format!("{right} {target} is not"))
            } else {
                Ok(None)
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
                Roots::file(path).map_err(|wrong| format!("--ca {}: {wrong}", path.display()))?,
            ),
            None => {
                let or = "give the CA that signed the server's certificate with --ca FILE";
                Some(Roots::system().map_err(|wrong| format!("{wrong}; {or}"))?)
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
    /// Takes the handshake.
    ///
    /// # Errors
    /// What is wrong with the server or its certificate, in rustls' words, and what would help.
    pub(super) async fn connect(&self, socket: Socket) -> io::Result<TlsStream<Socket>> {
        let connector = TlsConnector::from(self.config.clone());
        let shaken = connector.connect(self.name.clone(), socket).await;
        shaken
            .map_err(|error| io::Error::other(format!("the TLS handshake failed: {error}; {HELP}")))
    }
}

/// A CA's own certificate, shown by a server.
fn is_of_a_ca(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity"))
}

/// Takes a server's certificate, or not; the handshake itself is always checked.
#[derive(Debug)]
struct Verifier {
    /// `None` takes every certificate, of whomever it is.
    by_roots: Option<Arc<WebPkiServerVerifier>>,
    /// A server may show one of them itself: `openssl req -x509` makes certificates that are a server's and a CA's at once, which
    /// rustls alone refuses.
    roots: Option<Roots>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some((verifier, roots)) = self.by_roots.as_ref().zip(self.roots.as_ref()) else {
            return Ok(ServerCertVerified::assertion());
        };
        match verifier.verify_server_cert(shown, others, name, ocsp, now) {
            // This is looked at after its dates and before its name.
            Err(rustls::Error::InvalidCertificate(error))
                if is_of_a_ca(&error) && roots.certificates().contains(shown) =>
            {
                verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
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
