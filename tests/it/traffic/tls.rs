//! `https://`: through a front under TLS, and with certificates that are wrong.

use std::path::PathBuf;

use super::*;
use crate::support::assert_says;
use crate::support::tls::Authority;
use queuescope::error::FAILED;

/// A run of one request to `https://host`, or the error in its place.
async fn one(host: &str, addr: SocketAddr, more: &str) -> Result<Run, Error> {
    let line = format!("--random-input-len 8 --num-prompts 1 {more}");
    let url = format!("https://{host}:{}", addr.port());
    drive(generator::plan(&url, &line)?).await
}

#[tokio::test]
async fn a_certificate_of_a_name_or_number_is_verified_and_a_wrong_one_named_with_its_remedy() {
    let server = good().await;
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let ca = format!("--ca {}", ours.file().display());
    for (issuer, name, roots, said) in [
        (&other, "localhost", &*ca, "UnknownIssuer"),
        (&ours, "localhost", "", "UnknownIssuer"),
        (&ours, "a.example", &*ca, "not valid for name \"localhost\""),
    ] {
        let face = issuer.face(&[name], server.addr).await;
        let error = one("localhost", face.addr, roots).await.unwrap_err();
        assert_eq!(error.code, FAILED);
        let error = error.to_string();
        let url = format!("cannot reach https://localhost:{}: ", face.addr.port());
        let help = "; does the server speak TLS there? give the CA";
        let is_told = error.starts_with(&url) && error.contains(said) && error.contains(help);
        assert!(is_told, "{error}");

        let run = one("localhost", face.addr, "--insecure").await.unwrap();
        assert_eq!(outcomes(&run), [Outcome::Ok], "{said}");
    }
    let face = ours.face(&["localhost", "127.0.0.1"], server.addr).await;
    for host in ["localhost", "127.0.0.1"] {
        let run = one(host, face.addr, &ca).await.unwrap();
        assert_eq!(outcomes(&run), [Outcome::Ok]);
    }
    let plain = generator::sim(|_| {});
    let error = one("localhost", plain.addr(), &ca).await.unwrap_err();
    assert_says(&error.to_string(), "does the server speak TLS there?");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_commands_trust_the_systems_roots_and_say_loudly_when_they_verify_nothing() {
    let server = good().await;
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost"], server.addr).await;
    let url = format!("https://localhost:{}", face.addr.port());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display();
    let line = format!("traffic --base-url {url} --num-prompts 3 --force --output-dir {dir}");
    let (traffic, probe) = (flags(&line), ["probe", &url]);
    for line in [&traffic[..], &probe] {
        let under = |more: &[&str], roots: Option<PathBuf>| {
            let mut command = queuescope(&[line, more].concat());
            command.envs(roots.map(|roots| ("SSL_CERT_FILE", roots)));
            run_aside(command)
        };
        let done = under(&[], Some(ca.file())).await;
        // The recorded server's stamps are of another day; what counts is that it answered.
        let has_run = done.out.contains("3 ok") || done.out.contains("ok, status 200");
        let is_quiet = !done.out.contains("insecure") && !done.err.contains("insecure");
        assert!(has_run && is_quiet, "{done:?}");

        let done = under(&[], None).await;
        done.assert_status(&[1]);
        assert_says(&done.err, "with --ca FILE");
        assert_eq!(done.err.matches("error: ").count(), 1, "{}", done.err);

        let done = under(&["--insecure"], None).await;
        assert_says(&(done.err + &done.out), "warning: --insecure: ");
        assert_says(&done.out, "NOT verified");
    }
    let summary: Value = serde_json::from_str(&read(folder.path(), "summary.json")).unwrap();
    assert_eq!(summary["config"]["insecure"], true);
    assert_says(&summary["warnings"].to_string(), "NOT verified");
}
