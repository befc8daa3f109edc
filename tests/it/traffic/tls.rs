//! `https://`: through a front under TLS, and with certificates that are wrong.

use super::*;
use crate::support::proxy::Front;
use crate::support::tls::{Authority, params};
use rcgen::{CertificateParams, IsCa, date_time_ymd};

/// A plan of a few quick requests to `https://host:port`.
fn https(host: &str, addr: SocketAddr, line: &str) -> Result<RunPlan, Error> {
    let line = format!("--random-input-len 8 {line}");
    generator::plan(&format!("https://{host}:{}", addr.port()), &flags(&line))
}

fn trusting(ca: &Authority) -> String {
    format!("--ca {}", ca.file().display())
}

/// A run of one request to localhost, or the error in its place.
async fn one(addr: SocketAddr, line: &str) -> Result<Run, Error> {
    drive(https(
        "localhost",
        addr,
        &format!("--num-prompts 1 {line}"),
    )?)
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_requests_go_through_a_front_under_tls() {
    let sim = generator::sim(|_| {});
    let ca = Authority::new("ours");
    let (cert, key) = ca.certificate(&["localhost"]);
    let front = Front::with(&[sim.addr()], |config| {
        (config.tls_cert, config.tls_key) = (Some(cert), Some(key));
        config.upstream_kind = queuescope::proxy::shared::UpstreamKind::Server;
    })
    .await;
    let line = "--num-prompts 200 --max-concurrency 20 --random-output-len 4";
    let line = format!("{line} {}", trusting(&ca));
    let plan = https("localhost", front.addr(), &line).unwrap();
    let run = drive(plan).await.unwrap();
    assert_eq!(outcomes(&run), vec![Outcome::Ok; 200]);
    for row in &run.records {
        assert_eq!(row.inconsistency, None);
        assert_eq!(row.host, Some(sim.addr().to_string()));
        let order = [
            Moment::Sent,
            Moment::Arrival,
            Moment::FirstToken,
            Moment::Finish,
        ];
        let times = order.map(|moment| at(row, moment));
        assert!(times.is_sorted() && times[0] < times[3], "{times:?}");
    }
    let reused = run.records.iter().filter_map(|row| row.upstream_reused);
    assert!(reused.filter(|reused| *reused).count() > 100);
    let seen = front.rows().await;
    assert_eq!(seen.len(), 200);
    assert!(seen.iter().all(|row| row["outcome"] == "ok"));
}

#[tokio::test]
async fn names_are_asked_for_and_numbers_only_verified() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost", "127.0.0.1"], server.addr).await;
    for (host, asked_for) in [("localhost", Some("localhost")), ("127.0.0.1", None)] {
        let line = format!("--num-prompts 1 {}", trusting(&ca));
        let run = drive(https(host, face.addr, &line).unwrap()).await.unwrap();
        assert_eq!(outcomes(&run), [Outcome::Ok]);
        assert_eq!(face.asked_for().last().unwrap().as_deref(), asked_for);
        let authority = format!("{host}:{}", face.addr.port());
        let seen = server.seen();
        assert_eq!(seen.last().unwrap().header("host"), Some(authority));
    }
}

#[tokio::test]
async fn a_kept_connection_that_said_its_end_is_replaced_as_in_the_clear() {
    let server = Upstream::start(|turn, _| match turn {
        1 => vec![Step::Close],
        _ => vec![Step::Send(recorded("generate_stream"))],
    })
    .await;
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost"], server.addr).await;
    let line = format!("--num-prompts 3 --max-concurrency 1 {}", trusting(&ca));
    let run = drive(https("localhost", face.addr, &line).unwrap())
        .await
        .unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok; 3]);
    // Its last words under TLS are bytes too, but none of a response.
    let attempts = run.records.iter().filter_map(|row| row.attempts);
    let attempts: Vec<u64> = attempts.collect();
    assert_eq!(attempts, [1, 2, 1]);
}

fn aged(from: i32, to: i32) -> CertificateParams {
    let mut params = params(&["localhost"]);
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    params
}

#[tokio::test]
async fn a_wrong_certificate_is_named_with_its_remedy_and_insecure_takes_it() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let anew = Authority::new("ours");
    let mut of_a_ca = params(&["localhost"]);
    of_a_ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let localhost = || params(&["localhost"]);
    let of_two = params(&["a.example", "b.example"]);
    for (issuer, params, trusted, said) in [
        (&other, localhost(), true, "UnknownIssuer"),
        // A CA made anew under its old name.
        (&anew, localhost(), true, "BadSignature"),
        (&ours, localhost(), false, "UnknownIssuer"),
        (&ours, of_two, true, "not valid for name \"localhost\""),
        (&ours, aged(1999, 2001), true, "certificate expired"),
        (&ours, aged(2090, 2091), true, "certificate not valid yet"),
        (&ours, of_a_ca, true, "CaUsedAsEndEntity"),
    ] {
        let face = issuer.face_of(params, server.addr).await;
        let line = if trusted {
            trusting(&ours)
        } else {
            String::new()
        };
        let error = one(face.addr, line.trim()).await.unwrap_err();
        assert!(!error.is_usage());
        let error = error.to_string();
        let url = format!("cannot reach https://localhost:{}: ", face.addr.port());
        assert!(error.starts_with(&url) && error.contains(said), "{error}");
        assert!(
            error.contains("; does the server speak TLS there? give the CA"),
            "{error}"
        );

        let run = one(face.addr, "--insecure").await.unwrap();
        assert_eq!(outcomes(&run), [Outcome::Ok], "{said}");
    }
    let plain = generator::sim(|_| {});
    let error = one(plain.addr(), &trusting(&ours)).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("does the server speak TLS there?"),
        "{error}"
    );
}

#[tokio::test]
async fn a_certificate_that_is_its_own_ca_is_taken_when_it_is_given() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let own = |names: &[&str]| Authority::of_a_server("self", names);
    let ours = own(&["localhost"]);
    let face = ours.own_face(server.addr).await;
    let run = one(face.addr, &trusting(&ours)).await.unwrap();
    assert_eq!(outcomes(&run), [Outcome::Ok]);
    // Its name counts all the same, and another's is another's.
    let named_else = own(&["elsewhere"]);
    let face = named_else.own_face(server.addr).await;
    for (given, said) in [
        (&named_else, "not valid for name \"localhost\""),
        (&ours, "CaUsedAsEndEntity"),
    ] {
        let error = one(face.addr, &trusting(given)).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test]
async fn http_to_a_server_under_tls_is_told_to_take_https() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost"], server.addr).await;
    let run = drive(plan(face.addr, &["--num-prompts", "1"])).await;
    let error = run.unwrap().records[0].error.clone().unwrap();
    let said = "speaks TLS there, give https://";
    assert!(error.ends_with(said), "{error}");
}

#[test]
fn flags_that_do_not_fit_the_url_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    for (url, more, said) in [
        (
            "https://a",
            format!("--ca {empty}"),
            "holds no certificate; give a PEM file",
        ),
        (
            "https://a",
            "--ca /nowhere/ca.pem".into(),
            "--ca /nowhere/ca.pem: cannot be read",
        ),
        (
            "http://a:1",
            format!("--ca {empty}"),
            "go with an https:// URL",
        ),
        ("http://a:1", "--insecure".into(), "go with an https:// URL"),
    ] {
        let error = generator::plan(url, &flags(&more)).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains(said),
            "{error}"
        );
    }
    let both = ["traffic", "--ca", empty, "--insecure"];
    assert!(traffic::Args::try_parse_from(both).is_err());
}

/// The command as its users type it, with the system's roots or with these.
async fn under(line: &[&str], roots: Option<&Path>) -> Done {
    let mut command = queuescope(line);
    command.envs(roots.map(|roots| ("SSL_CERT_FILE", roots)));
    run_aside(command).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_commands_trust_the_systems_roots_and_say_loudly_when_they_verify_nothing() {
    let server = Upstream::always(recorded("generate_stream")).await;
    let ca = Authority::new("ours");
    let face = ca.face(&["localhost"], server.addr).await;
    let url = format!("https://localhost:{}", face.addr.port());
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let line = format!(
        "traffic --base-url {url} --num-prompts 3 --force --output-dir {}",
        dir.display()
    );
    let (traffic, probe) = (flags(&line), ["probe", &url]);
    for line in [&traffic[..], &probe] {
        let done = under(line, Some(&ca.file())).await;
        let (code, shown, said) = (done.code, done.out, done.err);
        assert!(
            !shown.contains("insecure") && !said.contains("insecure"),
            "{shown}{said}"
        );
        // The recorded server's stamps are of another day; what counts is that it answered.
        assert!(
            shown.contains("3 ok") || shown.contains("ok, status 200"),
            "{shown}"
        );
        // On a busy machine the run is INVALID.
        let has_run = matches!(code, Some(0 | 3));
        assert!(has_run || line == probe, "{code:?} {shown}");

        let done = under(line, None).await;
        done.assert_status(&[1]);
        let said = done.err;
        let errors = said.matches("error: ").count();
        assert!(said.contains("with --ca FILE") && errors == 1, "{said}");

        let done = under(&[line, &["--insecure"]].concat(), None).await;
        let all = done.out.clone() + &done.err;
        assert!(all.contains("warning: --insecure: "), "{all}");
        assert!(done.out.contains("NOT verified"), "{all}");
    }
    let summary: Value = serde_json::from_str(&read(&dir, "summary.json")).unwrap();
    assert_eq!(summary["config"]["insecure"], true);
    let warnings = summary["warnings"].to_string();
    assert!(warnings.contains("NOT verified"), "{warnings}");
}
