//! Whom requests are sent to: the base URL, how the certificate of an `https://` server is verified, and the secrets that are sent but
//! never shown: the API key and the values of the user's headers.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};

use crate::secret::MASK;
use crate::trust::Roots;
use crate::upstream::Address;

/// A base URL: `http://host:port` or `https://host:port`, optionally with a path before that of the API.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Host, port, and whether the scheme is `https`.
    pub address: Address,
    prefix: String,
    /// The `Host` header.
    pub(super) authority: HeaderValue,
}

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
/// Shorter secrets are not masked: a text may contain them by chance.
const MIN_BYTES: usize = 6;

impl Target {
    /// Parses a base URL.
    ///
    /// # Errors
    /// Says what is expected.
    pub fn parse(url: &str) -> Result<Target, String> {
        const EXPECTED: &str =
            "must be like http://127.0.0.1:30000 or https://name, without user and query";
        let uri: Uri = url.parse().map_err(|_| EXPECTED)?;
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let is_known = ["http", "https"].contains(&scheme);
        if !is_known || uri.query().is_some() || authority.is_empty() || authority.contains('@') {
            return Err(EXPECTED.to_owned());
        }
        let has_port = !authority.ends_with(']') && authority.contains(':');
        let port = match has_port || scheme == "https" {
            true => "",
            false => ":80",
        };
        let address = Address::parse(&format!("{scheme}://{authority}{port}"))?;
        let authority = HeaderValue::from_str(authority).map_err(|_| EXPECTED)?;
        Ok(Target {
            address,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority,
        })
    }

    /// The request target for an API path.
    pub fn path(&self, api: &str) -> String {
        format!("{}{api}", self.prefix)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, self.prefix)
    }
}

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

/// Returns the header `Authorization` for the given key, or for that of the variable `OPENAI_API_KEY`; `None` if it is empty. Its
/// `Debug` does not show it.
///
/// # Errors
/// Says what is expected, without the key.
pub fn api_key(given: Option<&str>) -> Result<Option<(HeaderName, HeaderValue)>, String> {
    let from_environment = || std::env::var("OPENAI_API_KEY").ok();
    let key = given.map(str::to_owned).or_else(from_environment);
    let key = key.filter(|key| !key.is_empty());
    let error = |problem| format!("the API key (--api-key or OPENAI_API_KEY) {problem}");
    if given.is_some_and(looks_like_a_flag) {
        return Err("--api-key: a flag follows it in place of a key: give the key, in OPENAI_API_KEY if it looks like one".to_owned());
    }
    let value = key.map(|key| bearer(&key)).transpose().map_err(error)?;
    Ok(value.map(|value| (AUTHORIZATION, value)))
}

/// Whether a text is one such as `--disable-stream` or `--num-prompts=5`.
fn looks_like_a_flag(text: &str) -> bool {
    let is_of_name = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let name = text.strip_prefix("--").unwrap_or_default();
    let name = name.split('=').next().unwrap_or_default();
    !name.is_empty() && name.bytes().all(is_of_name)
}

/// Returns the value of `Authorization` for a token.
///
/// # Errors
/// Says what is expected, without the token.
fn bearer(key: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(&format!("Bearer {key}")).ok();
    let mut value = value
        .filter(|_| key.is_ascii())
        .ok_or("must be printable ASCII on one line")?;
    value.set_sensitive(true);
    Ok(value)
}

/// Masks these values of headers in a text.
pub(super) fn masked<'a>(text: &str, values: impl Iterator<Item = &'a HeaderValue>) -> String {
    let texts = values.filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
    // Of `Bearer KEY`, also the key alone.
    let texts = texts.flat_map(|text| [Some(text), text.split_once(' ').map(|(_, key)| key)]);
    let long = texts.flatten().filter(|text| text.len() >= MIN_BYTES);
    long.fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
}

#[cfg(test)]
mod tests;
