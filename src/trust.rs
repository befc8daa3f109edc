//! Root certificates that servers' certificates are verified by: those of a PEM file, or the system's.

use std::path::Path;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};

/// Root certificates; at least one.
#[derive(Clone, Debug)]
pub struct Roots(Vec<CertificateDer<'static>>);

impl Roots {
    /// Reads the certificates of a PEM file, all of which must be usable.
    ///
    /// # Errors
    /// What is wrong with the file, with a hint.
    pub fn file(path: &Path) -> Result<Roots, String> {
        let hint = "give a PEM file with the certificates of the CA";
        let certificates = certificates(path).map_err(|error| format!("{error}; {hint}"))?;
        if !certificates.iter().all(is_usable) {
            return Err(format!("has an unreadable certificate; {hint}"));
        }
        Ok(Roots(certificates))
    }

    /// Reads the system's roots (or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`), without unusable ones.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub fn system() -> Result<Roots, String> {
        let found = rustls_native_certs::load_native_certs();
        let mut certificates = found
            .map_err(|error| format!("this system's root certificates cannot be read ({error})"))?;
        certificates.retain(is_usable);
        if certificates.is_empty() {
            return Err("this system has no root certificates".to_owned());
        }
        Ok(Roots(certificates))
    }

    /// The certificates.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0
    }

    /// The certificates as a store of rustls.
    pub fn store(&self) -> RootCertStore {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(self.0.iter().cloned());
        store
    }
}

/// Reads the certificates of a PEM file, at least one.
///
/// # Errors
/// What is wrong with the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| match error {
            pem::Error::Io(error) => format!("cannot be read ({error})"),
            error => format!("is not a PEM file ({error})"),
        })?;
    match certificates.is_empty() {
        true => Err("holds no certificate".to_owned()),
        false => Ok(certificates),
    }
}

fn is_usable(certificate: &CertificateDer<'_>) -> bool {
    RootCertStore::empty().add(certificate.clone()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_usable_certificates_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Roots::file(&path).map(|roots| roots.store().len())
        };
        let new = || rcgen::generate_simple_self_signed(["a".into()]).unwrap();
        let [first, second] = [new(), new()].map(|one| one.cert.pem());
        assert_eq!((of(&first), of(&(first.clone() + &second))), (Ok(1), Ok(2)));
        let pem = |of| format!("-----BEGIN CERTIFICATE-----\n{of}\n-----END CERTIFICATE-----\n");
        for (text, wrong) in [
            (String::new(), "holds no certificate"),
            ("hello".to_owned(), "holds no certificate"),
            (pem("aGVsbG8="), "unreadable certificate"),
            (pem("!"), "is not a PEM file"),
        ] {
            let error = of(&text).unwrap_err();
            assert!(error.contains(wrong), "{error}");
            assert!(error.contains("give a PEM"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Roots::file(&path).unwrap_err().contains("cannot be read"));
    }
}
