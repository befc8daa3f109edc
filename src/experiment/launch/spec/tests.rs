//! Which servers may use this machine's GPUs, hops of many servers, and command lines as they are shown.

use super::*;

#[test]
fn servers_on_this_machine_may_use_its_gpus() {
    for (engine, url, expected) in [
        (EngineName::External, "http://127.0.0.1:30000", true),
        (EngineName::External, "http://localhost:30000", true),
        (EngineName::External, "http://127.0.0.2:30000", true),
        (EngineName::External, "http://[::1]:30000", true),
        (EngineName::External, "http://gpu-server:30000", false),
        (EngineName::Sglang, "http://10.0.0.1:30000", true),
        (EngineName::Sim, "http://10.0.0.1:30000", false),
    ] {
        let servers = ["http://10.0.0.1:30000", url].map(str::to_owned);
        let spec = DeploymentSpec {
            engine,
            servers: servers.map(ServerSpec::Running).to_vec(),
            ..DeploymentSpec::default()
        };
        assert_eq!(spec.has_gpus_here(), expected, "{engine:?} {url}");
    }
}

fn line(env: &[(&str, &str)], args: &[&str]) -> CommandLine {
    let env = env.iter().map(|(n, v)| (n.to_string(), v.to_string()));
    CommandLine {
        env: env.collect(),
        ..CommandLine::new("/my bin/a", args)
    }
}

#[test]
fn secrets_of_a_command_are_not_shown() {
    let env = [("MYTOKEN", "S3"), ("PROXY", "http://me:S4@h"), ("HOW", "x")];
    let flags = ["--api-key", "S 1", "--model", "m", "--admin-api-key=S2"];
    let all = line(&env, &flags);
    assert_eq!(
        all.to_string(),
        "MYTOKEN='***' PROXY='http://***@h' HOW=x '/my bin/a' --api-key '***' --model m '--admin-api-key=***'"
    );
    assert_eq!(all.secrets(), ["S 1", "S2", "S3", "http://me:S4@h"]);
    let empty = line(&[], &["--api-key", "", "--token="]);
    assert_eq!(
        empty.to_string(),
        "'/my bin/a' --api-key '***' '--token=***'"
    );
    assert_eq!(empty.secrets(), [""; 0]);
}

#[test]
fn a_shown_command_can_be_pasted_into_a_shell() {
    let addr = SocketAddr::from(([127, 0, 0, 1], 30001));
    let line = line(&[("CUDA_VISIBLE_DEVICES", "0, 1")], &["sim"]);
    let shown = line
        .with(["--model", "it's a {model}"])
        .listening_on(addr)
        .to_string();
    assert_eq!(
        shown,
        r"CUDA_VISIBLE_DEVICES='0, 1' '/my bin/a' sim --host 127.0.0.1 --port 30001 --model 'it'\''s a {model}'"
    );
    let echoed = shown.replace(" '/my bin/a'", " printf '%s|'");
    let echoed = std::process::Command::new("sh")
        .args(["-c", &echoed])
        .output();
    let echoed = String::from_utf8(echoed.unwrap().stdout).unwrap();
    assert!(echoed.contains("|--model|it's a {model}|"), "{echoed}");
}

#[test]
fn a_proxy_may_have_as_many_hops_as_a_plan_may_have_servers() {
    let spec = DeploymentSpec {
        servers: vec![ServerSpec::Running(String::new()); 1024],
        hops: true,
        ..DeploymentSpec::default()
    };
    spec.check_proxy().unwrap();
}
