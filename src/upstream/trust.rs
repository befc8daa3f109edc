//! Roots as Pingora takes them.
//!
//! Pingora would read these itself, once at the start, and panic over a file that it cannot read. Handed over
//! with each connection they are checked by us, and can change with a reload.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pingora::protocols::tls::CaType;
use pingora::tls::CertificateDer;
use pingora::utils::tls::WrappedX509;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::trust::Roots;

/// Roots that an upstream's certificate may be signed by.
#[derive(Clone)]
pub struct Trust(Arc<CaType>);

impl Trust {
    /// The certificates of a PEM file, all of which must be usable.
    ///
    /// # Errors
    /// What is wrong with the file, and what would be right.
    pub fn file(path: &Path) -> Result<Trust, String> {
        let roots = Roots::file(path)?;
        let roots: Option<Arc<CaType>> = roots.certificates().iter().map(parsed).collect();
        let unread = "has a certificate that Pingora cannot read; give another of the same CA";
        roots.map(Trust).ok_or_else(|| unread.to_owned())
    }

    /// The system's roots; those that cannot be used are left out.
    ///
    /// # Errors
    /// There are none.
    pub fn system() -> Result<Trust, String> {
        let roots = Roots::system().map_err(|wrong| format!("{wrong}; give upstream_ca"))?;
        let roots = roots.certificates().iter().filter_map(parsed);
        Ok(Trust(roots.collect()))
    }

    /// As Pingora takes it.
    pub fn roots(&self) -> Arc<CaType> {
        self.0.clone()
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} roots)", self.0.len())
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Option<WrappedX509> {
    let parsed = WrappedX509::try_new(certificate.to_vec(), |raw| {
        X509Certificate::from_der(raw).map(|(_, parsed)| parsed)
    });
    parsed.ok()
}
