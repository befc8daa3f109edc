//! Keeps the house plan true: who may use whom, what files may be called and how long they may be, and
//! that config file and documents say what the code does.

use std::path::Path;

use queuescope::config;
use queuescope::config::args::Args;
use queuescope::config::proxy;

mod arrows;
mod docs;
mod files;
mod source;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every key that a section may have, from serde's own complaint about one that it may not.
fn keys_of<T: serde::de::DeserializeOwned>() -> Vec<String> {
    let Err(error) = toml::from_str::<T>("no-such-key = 1") else {
        panic!("the section takes any key");
    };
    let quoted: Vec<&str> = error.message().split('`').skip(1).step_by(2).collect();
    assert_eq!(quoted[0], "no-such-key");
    quoted[1..].iter().map(ToString::to_string).collect()
}

#[test]
fn config_toml_is_the_defaults_and_names_every_key() {
    let path = root().join("config.toml");
    let loaded = config::load(Some(&path), &Args::default()).unwrap();
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    assert_eq!(loaded.config, proxy::Config::default());

    // Its examples are right too.
    let text = std::fs::read_to_string(&path).unwrap();
    let example = |line: &str| {
        let is_example = line.starts_with('#') && !line.starts_with("# ");
        line[usize::from(is_example)..].to_owned() + "\n"
    };
    let whole: String = text.lines().map(example).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("whole.toml");
    std::fs::write(&file, &whole).unwrap();
    let loaded = config::load(Some(&file), &Args::default()).unwrap();
    assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
    let mut config = loaded.config;
    config.upstream = vec![std::net::SocketAddr::from(([127, 0, 0, 1], 30000)).into()];
    // One or the other.
    config.admin_token_file = None;
    config.hop_secret_file = None;
    config.check().unwrap();
    assert_eq!(config.workers.len(), 1);

    let sections: Vec<&str> = whole.split("[[worker]]").collect();
    let keys = [keys_of::<proxy::Config>(), keys_of::<proxy::Worker>()];
    for (section, keys) in sections.iter().zip(&keys) {
        assert!(keys.len() >= 3);
        for key in keys {
            let line = format!("\n{key} = ");
            assert_eq!(section.matches(&line).count(), 1, "{key} in config.toml");
        }
    }
}
