//! A TLS face for a plain server, with certificates made for the test.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::listening::Listening;

/// A private certificate authority.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A TLS listener that passes what comes on to a plain server. It ends when dropped.
pub struct TlsFace {
    pub addr: SocketAddr,
    asked_for: Arc<Mutex<Vec<Option<String>>>>,
    ends: Arc<Mutex<Vec<io::Result<()>>>>,
    _listening: Listening,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        Authority::of_a_server(name, &[])
    }

    /// One whose certificate is a server's too, as `openssl req -x509` makes them.
    pub fn of_a_server(name: &str, names: &[&str]) -> Authority {
        let mut params = params(names);
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, folder }
    }

    /// Its certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A TLS face of `server` with its own certificate.
    pub async fn own_face(&self, server: SocketAddr) -> TlsFace {
        let key = PrivateKeyDer::try_from(self.issuer.key().serialize_der()).unwrap();
        TlsFace::with(self.issuer.der().clone(), key, server).await
    }

    /// A TLS face of `server` with a certificate for `names`.
    pub async fn face(&self, names: &[&str], server: SocketAddr) -> TlsFace {
        let key = KeyPair::generate().unwrap();
        let certificate = params(names).signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        TlsFace::with(certificate.der().clone(), key, server).await
    }
}

/// What a certificate for `names` says.
fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    CertificateParams::new(names).unwrap()
}

impl TlsFace {
    async fn with(
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
        server: SocketAddr,
    ) -> TlsFace {
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        // gRPC asks for it.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let asked_for = Arc::new(Mutex::new(Vec::new()));
        let names = asked_for.clone();
        let ends = Arc::new(Mutex::new(Vec::new()));
        let all_ends = ends.clone();
        let listening = Listening::start(move |_, stream| {
            let (acceptor, names, ends) = (acceptor.clone(), names.clone(), all_ends.clone());
            async move {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    return;
                };
                let name = stream.get_ref().1.server_name().map(str::to_owned);
                names.lock().unwrap().push(name);
                let mut there = TcpStream::connect(server).await.unwrap();
                let copied = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
                ends.lock().unwrap().push(copied.map(drop));
            }
        });
        let listening = listening.await;
        TlsFace {
            addr: listening.addr,
            asked_for,
            ends,
            _listening: listening,
        }
    }

    /// The name that each connection asked for.
    pub fn asked_for(&self) -> Vec<Option<String>> {
        self.asked_for.lock().unwrap().clone()
    }

    /// How many connections have ended.
    pub fn ended(&self) -> usize {
        self.ends.lock().unwrap().len()
    }

    /// How many of them ended without `close_notify`.
    pub fn cut_off(&self) -> usize {
        let is_cut = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
        let ends = self.ends.lock().unwrap();
        let failed = ends.iter().filter_map(|end| end.as_ref().err());
        failed.filter(|error| is_cut(error)).count()
    }
}
