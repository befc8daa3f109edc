//! Root certificates for Pingora.
//!
//! Pingora would read them itself, once at the start, and panic if it cannot. Given with each connection, we check them, and a
//! reload can change them.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use pingora::protocols::tls::CaType;
use pingora::tls::CertificateDer;
use pingora::utils::tls::WrappedX509;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::trust::Roots;

/// The root certificates for upstreams.
#[derive(Clone)]
pub struct Trust {
    /// As Pingora's options have them.
    pub roots: Arc<CaType>,
    /// A hash of the roots: a connection that other roots verified is not used.
    pub key: u64,
}

impl Trust {
    /// Reads the certificates of a PEM file.
    ///
    /// # Errors
    /// What is wrong with the file, with a hint.
    pub fn from_file(path: &Path) -> Result<Trust, String> {
        let trust = Trust::of(&Roots::file(path)?);
        let hint = "has no certificate that Pingora can read; give another of the same CA";
        let is_usable = !trust.roots.is_empty();
        is_usable.then_some(trust).ok_or_else(|| hint.to_owned())
    }

    /// Reads the system's roots; unusable ones are left out.
    ///
    /// # Errors
    /// The system has none.
    pub fn system() -> Result<Trust, String> {
        let roots = Roots::system();
        let roots =
            roots.map_err(|problem| format!("is needed for an https:// upstream, as {problem}"))?;
        Ok(Trust::of(&roots))
    }

    /// Parses them for Pingora; those that it cannot read are left out.
    fn of(roots: &Roots) -> Trust {
        let mut hasher = DefaultHasher::new();
        roots.certificates().hash(&mut hasher);
        Trust {
            roots: roots.certificates().iter().filter_map(parsed).collect(),
            key: hasher.finish(),
        }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} roots)", self.roots.len())
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Option<WrappedX509> {
    let parsed = WrappedX509::try_new(certificate.to_vec(), |raw| {
        X509Certificate::from_der(raw).map(|(_, parsed)| parsed)
    });
    parsed.ok()
}
