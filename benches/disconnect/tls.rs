//! Our front under TLS.

use std::fs;
use std::net::SocketAddr;

use tempfile::TempDir;
use tokio_rustls::rustls::RootCertStore;

use crate::chain::{Process, queuescope};

/// A front with a certificate for `localhost`. It ends when dropped.
pub struct TlsFront {
    pub address: SocketAddr,
    /// What its clients trust.
    pub trusts: RootCertStore,
    _process: Process,
    _folder: TempDir,
}

impl TlsFront {
    pub fn start(server: SocketAddr, threads: usize) -> TlsFront {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
        fs::write(&cert, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let mut trusts = RootCertStore::empty();
        trusts.add(made.cert.der().clone()).unwrap();
        let [cert, key] = [&cert, &key].map(|path| path.to_str().unwrap());
        let upstream = format!("http://{server}");
        let args = [
            ["--upstream", &upstream, "--upstream-kind", "server"],
            ["--tls-cert", cert, "--tls-key", key],
        ];
        let records = folder.path().join("front.csv");
        let (process, address) = queuescope(&records, threads, &args.concat(), "front on https://");
        TlsFront {
            address,
            trusts,
            _process: process,
            _folder: folder,
        }
    }
}
