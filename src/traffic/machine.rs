//! The machine that a run was made on.

use std::fs;
use std::thread::available_parallelism;

/// The properties of a machine that matter for its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Machine {
    /// Processors this process may use.
    pub cores: Option<usize>,
    /// The processor's model name.
    pub cpu_model: Option<String>,
    /// Name and release of the kernel.
    pub kernel: Option<String>,
}

impl Machine {
    /// Reads the properties from the system; `None` where it does not report one.
    pub fn read() -> Machine {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Machine {
            cores: available_parallelism().ok().map(usize::from),
            cpu_model: cpu_model(&cpus),
            kernel: kernel.map(|release| format!("Linux {}", release.trim())),
        }
    }
}

/// Returns the first `model name` of a `/proc/cpuinfo`.
fn cpu_model(cpus: &str) -> Option<String> {
    let mut lines = cpus.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = lines.find(|(key, _)| key.trim() == "model name")?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_the_first_in_the_file() {
        let cpus = "processor\t: 0\nmodel name\t: Fast CPU @ 3:2 GHz\n\nprocessor\t: 1\nmodel name\t: Other\n";
        assert_eq!(cpu_model(cpus).as_deref(), Some("Fast CPU @ 3:2 GHz"));
        assert_eq!(cpu_model("processor : 0\n"), None);
        let machine = Machine::read();
        assert!(machine.cores > Some(0) && machine.kernel.unwrap().starts_with("Linux "));
    }
}
