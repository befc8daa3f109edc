//! `queuescope check` as its users run it.

use std::sync::Arc;

use nix::sys::signal::Signal;

use crate::support::process::{Done, Process, queuescope, run};

fn check(config: &str, flags: &[&str]) -> Done {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    std::fs::write(&file, config).unwrap();
    let line = ["check", "--config", file.to_str().unwrap()];
    run(queuescope(&[&line, flags].concat()))
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[test]
fn a_good_config_is_drawn_with_the_flags_over_it() {
    let config = "[proxy]\nupstream = [\"127.0.0.1:8000\"]\nadmin = \"0.0.0.0:8801\"\n";
    let done = check(config, &["--worker", "w=127.0.0.1:9000=127.0.0.1:30000"]);
    assert_eq!((done.code, done.err.len()), (Some(0), 0));
    let said = lines(&done.out);
    assert_eq!(
        said[0],
        "clients -> front 127.0.0.1:8800 -> router 127.0.0.1:8000"
    );
    assert!(said[1].ends_with("router -> hop w 127.0.0.1:9000 -> server 127.0.0.1:30000"));
    let warnings: Vec<_> = said.iter().filter(|l| l.starts_with("warning: ")).collect();
    assert_eq!(warnings.len(), 1, "{said:?}");
    assert!(warnings[0].contains("admin = \"0.0.0.0:8801\""));
}

/// Five faults, as a newcomer makes them.
const FIVE: &str = "[proxy]\nlisten = 127.0.0.1:8800\nupstream = \"http://127.0.0.1:30000\"\nthreads = 0\n\
                    name = \"w0\"\n[worker]\nname = \"w0\"\nlisten = \"127.0.0.1:9000\"\n\
                    upstream = \"127.0.0.1:30000\"\n";
const TOLD: [&str; 5] = [
    "line 2: listen = 127.0.0.1:8800: must be text in quotes, as in listen = \"127.0.0.1:8800\"",
    "line 3: upstream = \"http://127.0.0.1:30000\": must be a list in brackets, as in upstream = \
     [\"http://127.0.0.1:30000\"]",
    "line 4: threads = 0: must be from 1 to 1024",
    "line 5: name: belongs under `[[worker]]`",
    "line 6: [worker]: write `[[worker]]`",
];

#[test]
fn a_start_tells_every_fault_as_the_check_does() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), FIVE).unwrap();
    for subcommand in ["check", "proxy"] {
        let mut command = queuescope(&[subcommand, "--config", "c.toml"]);
        command.current_dir(folder.path());
        let done = run(command);
        assert_eq!((done.code, done.out.len()), (Some(2), 0));
        let said = lines(&done.err);
        assert_eq!(said.len(), TOLD.len(), "{said:#?}");
        for (said, told) in said.iter().zip(TOLD) {
            assert!(
                said.starts_with("error: ") && said.ends_with(told),
                "{said}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_tells_every_fault_too_and_changes_nothing() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let file = folder.path().join("c.toml");
    std::fs::write(&file, "[proxy]\nupstream = [\"127.0.0.1:1\"]\n").unwrap();
    let config = file.display().to_string();
    let process = Process::in_folder(folder.clone(), &["--config", &config]);
    std::fs::write(&file, FIVE).unwrap();
    process.signal(Signal::SIGHUP);
    // A line a fault, each time that it is asked.
    for _ in 0..3 {
        for told in TOLD {
            let said = process.says("reload refused, nothing has changed: ");
            assert!(said.ends_with(told), "{told}: {said}");
        }
        process.signal(Signal::SIGHUP);
    }
    assert_eq!(process.ready().await, 200);
}

#[test]
fn every_fault_is_a_line_and_the_exit_code_is_2() {
    let config = "[proxy]\nthreads = \"two\"\nupstraem = []\nlisten = \"8800\"\n\
                  records = \"/no/such/folder/r.csv\"\n[[worker]]\nname = \"w\"\nlisten = \"127.0.0.1:1\"\n\
                  upstream = \"nowhere\"\n";
    let done = check(config, &["--upstream-read-timeout-s", "0"]);
    assert_eq!((done.code, done.out.len()), (Some(2), 0));
    let said = lines(&done.err);
    assert_eq!(said.len(), 6, "{said:?}");
    for piece in [
        "c.toml, line 2: threads = \"two\": must be a whole number",
        "c.toml, line 3: unknown key `upstraem`; did you mean `upstream`?",
        "c.toml, line 4: listen = \"8800\": not an address to listen on; give IP:PORT",
        "c.toml, line 9: upstream = \"nowhere\": the port is missing",
        "--upstream-read-timeout-s 0: must be from 0.001",
        "records = \"/no/such/folder/r.csv\": there is no folder /no/such/folder",
    ] {
        assert!(
            said.iter().any(|line| line.contains(piece)),
            "{piece}: {said:?}"
        );
    }
}

#[test]
fn a_slip_in_a_header_hides_no_other_fault() {
    let config = "[proxy]\nupstream = \"http://127.0.0.1:30000\"\nmax_conections = 4\nthreads = 0\n[[worker]\n\
                  name = \"w0\"\nlisten = 9000\nupstream = \"http://127.0.0.1:30001\"\n";
    let done = check(config, &[]);
    let said = lines(&done.err);
    assert_eq!(said.len(), 5, "{said:#?}");
    for (said, piece) in said.iter().zip([
        "line 2: upstream = \"http://127.0.0.1:30000\": must be a list",
        "line 3: unknown key `max_conections`; did you mean `max_connections`?",
        "line 4: threads = 0: must be from 1",
        "line 5: [[worker]: write `[[worker]]`",
        "line 7: listen = 9000: must be text in quotes",
    ]) {
        assert!(said.contains(piece), "{piece}: {said}");
    }
}

#[test]
fn one_fault_does_not_hide_another() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().display();
    let config = format!(
        "[proxy]\nupstream = [\"127.0.0.1:8801\", \"127.0.0.1:1\"]\nlisten = \"0.0.0.0:8800\"\n\
         threads = 0\nrecords = \"{records}\"\ntls_cert = \"no.pem\"\ntls_key = \"no.pem\"\n\
         upstream_ca = \"none.pem\"\n\
         [[worker]]\nname = \"a b\"\nlisten = \"127.0.0.1:8800\"\nupstream = \"x\"\n\
         [[worker]]\nname = \"w\"\nlisten = \"127.0.0.1:8801\"\nupstream = \"127.0.0.1:8800\"\n"
    );
    let done = check(&config, &[]);
    assert_eq!((done.code, done.out.len()), (Some(2), 0));
    let said = lines(&done.err);
    let records = format!("records = \"{records}\": is a folder");
    for piece in [
        "line 4: threads = 0: must be",
        "upstream = \"127.0.0.1:8801\": is this proxy's own admin listener",
        "line 10: name = \"a b\": must be 1 to 64",
        "line 12: upstream = \"x\": the port is missing",
        "worker number-1: listen = \"127.0.0.1:8800\": `listen` has this address",
        "worker w: listen = \"127.0.0.1:8801\": `admin` has this address",
        "worker w: upstream = \"127.0.0.1:8800\": is this proxy's own listener",
        &records,
        "tls_cert = \"no.pem\": ",
        "tls_key = \"no.pem\": ",
        "upstream_ca = \"none.pem\": ",
    ] {
        assert!(
            said.iter().any(|line| line.contains(piece)),
            "{piece}: {said:#?}"
        );
    }
    assert_eq!(said.len(), 11, "{said:#?}");
    // A bad admin address takes nothing from the workers' faults.
    let config = config.replace("threads = 0", "admin = \"x\"");
    let done = check(&config, &[]);
    let said = lines(&done.err);
    assert!(said.iter().any(|line| line.contains("`listen` has this")));
}
