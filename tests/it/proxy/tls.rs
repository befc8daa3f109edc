//! TLS: of the front's listener, and of upstreams.

use std::path::PathBuf;

use queuescope::upstream::Address;
use rcgen::CertifiedKey;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::leaving::{ASK_UPGRADE, SWITCH};
use super::*;

/// A certificate for `localhost` that signs itself, in files.
pub struct Certificate {
    pub folder: TempDir,
    pub der: Der,
}

pub type Der = CertificateDer<'static>;

impl Certificate {
    pub fn new() -> Certificate {
        let folder = tempfile::tempdir().unwrap();
        let der = write(folder.path());
        Certificate { folder, der }
    }

    fn cert(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    /// The keys of a front with it.
    pub fn keys(&self) -> String {
        let (cert, key) = (self.cert(), self.key());
        format!("tls_cert = {cert:?}\ntls_key = {key:?}\n")
    }

    /// A front with it before a server, and with these keys.
    pub async fn front(&self, server: SocketAddr, keys: &str) -> Front {
        Front::keyed(&[server], &(self.keys() + keys)).await
    }

    pub fn put(&self, config: &mut Config) {
        config.tls_cert = Some(self.cert());
        config.tls_key = Some(self.key());
    }
}

pub fn write(folder: &Path) -> Der {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    std::fs::write(folder.join("cert.pem"), cert.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), signing_key.serialize_pem()).unwrap();
    cert.der().clone()
}

/// A front under TLS before a server.
pub async fn secure(server: SocketAddr) -> (Certificate, Front) {
    let certificate = Certificate::new();
    let front = certificate.front(server, "").await;
    (certificate, front)
}

/// Shakes hands as a client that trusts this certificate alone and can speak these protocols.
pub async fn over(
    stream: TcpStream,
    trusts: &Der,
    alpn: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(trusts.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

pub async fn connect(addr: SocketAddr, trusts: &Der) -> Client<TlsStream<TcpStream>> {
    try_connect(addr, trusts).await.unwrap()
}

/// A handshake that may fail.
pub async fn try_connect(
    addr: SocketAddr,
    trusts: &Der,
) -> std::io::Result<Client<TlsStream<TcpStream>>> {
    let stream = over(TcpStream::connect(addr).await?, trusts, &[]).await?;
    Ok(Client { stream })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_1_and_2_go_through_tls_as_in_the_clear_and_nothing_else_does() {
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(300_000));
    let upstream = Upstream::always(json_response(&body)).await;
    let (certificate, front) = secure(upstream.addr).await;
    let handshake = async |trusts: &Der, alpn: &[&str]| {
        let stream = TcpStream::connect(front.addr()).await.unwrap();
        over(stream, trusts, alpn).await
    };
    let stream = handshake(&certificate.der, &["http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut old = Client { stream };
    let both = ["h2", "http/1.1"];
    let new = handshake(&certificate.der, &both).await.unwrap();
    assert_eq!(new.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut new = Http2::over(new).await;
    for n in 0..3 {
        let sent = vec![b' '; n * 100_000];
        let of_old = old.ask("/generate", "", &sent).await;
        let of_new = new.post("/generate", &sent).await.answer().await;
        assert_eq!((of_old.status(), of_new.status), (200, 200));
        assert!(of_old.body == body.as_bytes() && of_new.body == of_old.body);
        let mut both = upstream.seen().into_iter().skip(2 * n);
        assert!(both.all(|seen| seen.body == sent));
    }
    assert!(handshake(&certificate.der, &["h3"]).await.is_err());
    // Plain HTTP is no handshake, and one who trusts another goes away.
    let mut plain = front.sent(post("/generate", "", b"{}")).await;
    assert!(!plain.read_to_close().await.starts_with(b"HTTP"));
    assert!(handshake(&Certificate::new().der, &[]).await.is_err());
    front.counts("queuescope_broken_heads_total ", 3).await;
    drop((old, new));
    front.all_end(6, "ok", "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_does_not_come_holds_up_nobody_and_ends() {
    let upstream = Upstream::ok().await;
    let certificate = Certificate::new();
    let keys = "client_head_timeout_s = 1.0";
    let front = certificate.front(upstream.addr, keys).await;
    let addr = front.addr();
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(addr).await.unwrap());
    }
    let mut client = connect(addr, &certificate.der).await;
    assert_eq!(client.ask("/generate", "", b"{}").await.status(), 200);
    // Nor does a head that does not end.
    client.send("POST /generate HTTP/1.1\r\n").await;
    assert_eq!(client.response().await.status(), 408);
    for mut silent in silent {
        assert_eq!(silent.read(&mut [0; 9]).await.unwrap_or(0), 0);
    }
    front.counts("queuescope_broken_heads_total ", 21).await;
}

#[test]
fn what_is_wrong_with_a_file_is_told() {
    let (certificate, other) = (Certificate::new(), Certificate::new());
    let (cert, key) = (Some(certificate.cert()), Some(certificate.key()));
    let broken = certificate.folder.path().join("broken.pem");
    let text = "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n";
    std::fs::write(&broken, text).unwrap();
    let other = Some(other.key());
    for (cert, key, told) in [
        (&key, &key, "tls_cert: holds no certificate"),
        (&cert, &cert, "tls_key: holds no private key"),
        (&Some(broken), &key, "tls_cert: is not a PEM file"),
        (&cert, &other, "tls_key: cannot be used with tls_cert"),
    ] {
        let mut config = config(&["127.0.0.1:1".parse().unwrap()]);
        (config.tls_cert, config.tls_key) = (cert.clone(), key.clone());
        let (key, wrong) = config.check().unwrap_err().remove(0);
        assert_says(&format!("{key}: {wrong}"), told);
    }
}

fn https(host: &str, addr: SocketAddr) -> Address {
    Address::parse(&format!("https://{host}:{}", addr.port())).unwrap()
}

/// A front before servers under TLS, by this name, that trusts this authority besides the system's.
async fn front_to(host: &str, servers: &[SocketAddr], trusted: Option<&Authority>) -> Front {
    Front::altered(&[], "", |config| {
        config.upstream = servers.iter().map(|server| https(host, *server)).collect();
        config.rules.upstream_ca = trusted.map(Authority::file);
    })
    .await
}

/// An upstream of the front, and the server of a hop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_right_certificate_serves() {
    let server = Upstream::playing([begun(), done()].concat()).await;
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost", "127.0.0.1"], server.addr).await;
    // A name is asked for; a number is only verified (RFC 6066, section 3).
    for (host, asked_for, is_hop) in [
        ("localhost", Some("localhost"), false),
        ("127.0.0.1", None, true),
    ] {
        let front = match is_hop {
            false => front_to(host, &[face.addr], Some(&ca)).await,
            true => {
                Front::with(&[], |config| {
                    config.rules.upstream_ca = Some(ca.file());
                    config.workers = workers(&[face.addr]);
                    config.workers[0].upstream = https(host, face.addr);
                })
                .await
            }
        };
        let mut client = front.client().await;
        for _ in 0..3 {
            let response = client.ask("/generate", "", b"{\"stream\":true}").await;
            assert!(response.whole && response.body.ends_with(b"data: [DONE]\n\n"));
        }
        drop(client);
        assert_eq!(face.asked_for().last().unwrap().as_deref(), asked_for);
        let rows = front.rows().await;
        assert!(rows.iter().all(|row| row["outcome"] == "ok"));
        // Pingora's pool drops a kept one now and then (see `limits`).
        assert!(rows.iter().any(|row| row["upstream_reused"] == "True"));
    }
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.header("host").unwrap() == "h"));
    // Where one speaks no TLS, another may try.
    let plain = plain().await;
    let both = front_to("localhost", &[plain.addr, face.addr], Some(&ca)).await;
    for _ in 0..4 {
        assert_eq!(both.ask("/generate", "", b"{}").await.status(), 200);
    }
    let name = format!("localhost:{}", plain.addr.port());
    let healthy = format!("queuescope_upstream_healthy{{upstream=\"{name}\"}} 0\n");
    assert_says(&both.proxy.metrics().text(), &healthy);
}

/// Whoever ends it: a server takes the connection's end without `close_notify` for an attack.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_connection_to_a_server_under_tls_ends_in_good_order() {
    for server_ends in [false, true] {
        let end = if server_ends {
            Step::Close
        } else {
            Step::Silence
        };
        let server = Upstream::playing(vec![Step::Send(SWITCH.into()), end]).await;
        let ca = Authority::new("ours");
        let face = ca.face(&["localhost"], server.addr).await;
        let front = front_to("localhost", &[face.addr], Some(&ca)).await;
        let mut client = front.sent(ASK_UPGRADE).await;
        client.read_until(|reader| reader.head.is_some()).await;
        if server_ends {
            assert!(client.is_closed().await);
        }
        drop(client);
        until("it has ended", || face.ended() == 1).await;
        assert_eq!(face.cut_off(), 0, "{server_ends}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_certificate_is_a_502_and_its_record_says_so() {
    let server = Upstream::ok().await;
    let (ca, other) = (Authority::new("right"), Authority::new("other"));
    let right = ca.face(&["localhost"], server.addr).await;
    let named_else = ca.face(&["elsewhere"], server.addr).await;
    let itself = Authority::of_a_server("itself", &["localhost"]);
    let own = itself.own_face(server.addr).await;
    let plain = plain().await;
    for (face, trusted, reason) in [
        (own.addr, Some(&itself), "CaUsedAsEndEntity"),
        (right.addr, Some(&other), "UnknownIssuer"),
        (right.addr, None, "UnknownIssuer"),
        (named_else.addr, Some(&ca), "not valid for name"),
        (plain.addr, Some(&ca), "corrupt message"),
    ] {
        let front = front_to("localhost", &[face], trusted).await;
        let response = front.ask("/generate", "", b"{}").await;
        assert_eq!(response.status(), 502);
        let error = &response.json()["error"];
        assert_eq!(error["message"], "upstream: the TLS connection failed");
        let row = front.only_row().await;
        for piece in [
            "localhost:",
            "the TLS connection failed",
            reason,
            "SNI: localhost",
        ] {
            assert_outcome(&row, "proxy_error", piece);
        }
        assert_eq!(row["attempts"], "0");
    }
    assert!(server.seen().is_empty());
}

/// What answers a TLS greeting as a plain server does.
async fn plain() -> Listening {
    let speaks = |_, mut stream: TcpStream| async move {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    };
    Listening::start(speaks).await
}
