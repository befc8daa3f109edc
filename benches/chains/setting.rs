//! Settings of a bench, what it ran on, and figures over rounds.

use std::process::Command;

use queuescope::stats::quantile;
use queuescope::traffic;

/// A number from the environment.
pub fn setting(name: &str, default: f64) -> f64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} = `{text}` must be a number")),
        Err(_) => default,
    }
}

pub fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    quantile(&all, 0.5).unwrap_or(f64::NAN)
}

/// Machine, versions, commit and load, as a reader needs them beside the figures.
pub fn print_where() {
    let machine = traffic::machine();
    println!(
        "{} cores of {}, {}; load average {}",
        machine["cores"],
        machine["cpu_model"].as_str().unwrap_or("an unknown CPU"),
        machine["kernel"].as_str().unwrap_or("unknown kernel"),
        load(),
    );
    println!(
        "queuescope {} at {}, Pingora {}",
        env!("CARGO_PKG_VERSION"),
        said_by("git", &["describe", "--always", "--dirty"]),
        pingora()
    );
    let nginx = said_by("sh", &["-c", "nginx -v 2>&1"]);
    if nginx.contains("version") {
        println!("{nginx}");
    }
}

/// The three load averages now.
pub fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn pingora() -> &'static str {
    let lock = include_str!("../../Cargo.lock");
    let (_, rest) = lock.split_once("name = \"pingora\"\nversion = \"").unwrap();
    rest.split('"').next().unwrap()
}

fn said_by(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map_or_else(
        |_| "unknown".into(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
