//! Whose signature on an upstream's certificate we take.
//!
//! Pingora would read these itself, once at the start, and panic over a file that it cannot read. Handed over
//! with each connection they are checked by us, and can change with a reload.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pingora::protocols::tls::CaType;
use pingora::tls::{CertificateDer, RootCertStore, load_native_certs};
use pingora::utils::tls::WrappedX509;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Roots that an upstream's certificate may be signed by.
#[derive(Clone)]
pub struct Trust(Arc<CaType>);

impl Trust {
    /// The certificates of a PEM file, all of which must be usable.
    ///
    /// # Errors
    /// What is wrong with the file, and what would be right.
    pub fn file(path: &Path) -> Result<Trust, String> {
        let right = "give a PEM file with the certificates of the CA";
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| format!("cannot be read ({error}); {right}"))?;
        if certificates.is_empty() {
            return Err(format!("has no certificate; {right}"));
        }
        let roots = certificates.iter().map(root);
        let roots: Option<Arc<CaType>> = roots.collect();
        let roots = roots.ok_or_else(|| format!("has a certificate that is none; {right}"))?;
        Ok(Trust(roots))
    }

    /// The system's roots; those that cannot be used are left out.
    ///
    /// # Errors
    /// There are none.
    pub fn system() -> Result<Trust, String> {
        let certificates = load_native_certs().unwrap_or_default();
        let roots: Arc<CaType> = certificates.iter().filter_map(root).collect();
        if roots.is_empty() {
            return Err("this system has no root certificates; give upstream_ca".into());
        }
        Ok(Trust(roots))
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

/// A certificate as Pingora takes it; `None` when rustls, or Pingora's parser, would not.
fn root(certificate: &CertificateDer<'_>) -> Option<WrappedX509> {
    RootCertStore::empty().add(certificate.clone()).ok()?;
    let parsed = WrappedX509::try_new(certificate.to_vec(), |raw| {
        X509Certificate::from_der(raw).map(|(_, parsed)| parsed)
    });
    parsed.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_certificates_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Trust::file(&path).map(|trust| trust.roots().len())
        };
        let ca = || {
            rcgen::generate_simple_self_signed(["a".into()])
                .unwrap()
                .cert
                .pem()
        };
        assert_eq!(of(&ca()), Ok(1));
        assert_eq!(of(&(ca() + &ca())), Ok(2));
        for (text, wrong) in [
            ("", "has no certificate"),
            ("hello", "has no certificate"),
            (
                "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n",
                "that is none",
            ),
            (
                "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
                "cannot be read",
            ),
        ] {
            let error = of(text).unwrap_err();
            assert!(
                error.contains(wrong) && error.contains("give a PEM"),
                "{error}"
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Trust::file(&path).unwrap_err().contains("cannot be read"));
    }
}
