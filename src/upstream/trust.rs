//! Roots as Pingora takes them.
//!
//! Pingora would read these itself, once at the start, and panic over a file that it cannot read. Handed over
//! with each connection they are checked by us, and can change with a reload.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use pingora::protocols::tls::CaType;
use pingora::tls::CertificateDer;
use pingora::utils::tls::WrappedX509;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::trust::Roots;

/// Roots that an upstream's certificate may be signed by.
#[derive(Clone)]
pub struct Trust {
    roots: Arc<CaType>,
    key: u64,
}

impl Trust {
    /// The certificates of a PEM file, all of which must be usable.
    ///
    /// # Errors
    /// What is wrong with the file, and what would be right.
    pub fn file(path: &Path) -> Result<Trust, String> {
        let roots = Roots::file(path)?;
        let unread = "has a certificate that Pingora cannot read; give another of the same CA";
        let trust = Trust::of(&roots);
        let all = Some(trust).filter(|trust| trust.roots.len() == roots.certificates().len());
        all.ok_or_else(|| unread.to_owned())
    }

    /// The system's roots; those that cannot be used are left out.
    ///
    /// # Errors
    /// There are none.
    pub fn system() -> Result<Trust, String> {
        let roots = Roots::system().map_err(|wrong| format!("{wrong}; give upstream_ca"))?;
        Ok(Trust::of(&roots))
    }

    /// Those that Pingora can read.
    fn of(roots: &Roots) -> Trust {
        let mut hasher = DefaultHasher::new();
        roots.certificates().hash(&mut hasher);
        Trust {
            roots: roots.certificates().iter().filter_map(parsed).collect(),
            key: hasher.finish(),
        }
    }

    /// As Pingora takes it.
    pub fn roots(&self) -> Arc<CaType> {
        self.roots.clone()
    }

    /// A number that other roots have not: what one set has verified is nothing to another.
    pub fn key(&self) -> u64 {
        self.key
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
