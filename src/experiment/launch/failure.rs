//! What is said of a process that ended, or was not ready in time: its command, its log's end, and the likely cause.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use anyhow::anyhow;
use nix::sys::signal::Signal;

use super::command::CommandLine;
use crate::secret::MASK;

/// Words of which one is said (with `|` between), the likely cause, and what helps.
type Known = (&'static str, &'static str, &'static str);

/// What SGLang 0.5.23, torch, transformers, Python, the router and our own programs say, what is most certain first.
const KNOWN: [Known; 10] = [
    (
        "address already in use|Address already in use|Port is already in use",
        "the port is in use",
        "End what listens there (`ss -ltnp` shows it), or give another base_port.",
    ),
    (
        "No module named 'sglang|No module named sglang",
        "this Python has no SGLang",
        "Give the Python of the environment that SGLang is installed in, or `pip install sglang`.",
    ),
    (
        "cannot execute ",
        "the program is not there",
        "Give its path, or install it.",
    ),
    (
        "unrecognized arguments:|unexpected argument '|invalid choice:|expected one argument|invalid int value:|\
         invalid float value:",
        "it does not know an argument, or its value",
        "Correct or leave out what the line names; the program's --help lists what it takes.",
    ),
    (
        "ot enough memory. Please try to increase --mem-fraction-static",
        "weights leave no room for the KV cache within mem_fraction_static of the GPU's memory",
        "Raise mem_fraction_static, or take more GPUs a server (tp_size), a smaller model or quantized weights.",
    ),
    (
        "CUDA out of memory|CUDA error: out of memory|torch.OutOfMemoryError|HIP out of memory",
        "the GPU's memory ran out",
        "Lower mem_fraction_static or max_running_requests, take more GPUs a server (tp_size), and see with `nvidia-smi` \
         who else uses the GPU.",
    ),
    (
        "exit code: -9|exit code -9|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|MemoryError",
        "the host's memory ran out",
        "Free memory on this machine or start fewer servers on it; `dmesg -T | grep -i oom` shows what the system killed.",
    ),
    (
        "No accelerator (CUDA|No CUDA GPUs are available|invalid device ordinal|Found no NVIDIA driver|\
         Torch not compiled with CUDA enabled",
        "the GPU is not there",
        "See with `nvidia-smi` which there are: the servers take tp_size GPUs each, from gpu_id on; without any GPU give \
         engine = \"sim\".",
    ),
    (
        "We couldn't connect to 'https://huggingface.co'|You are trying to access a gated repo|401 Client Error|\
         403 Client Error|is not a local folder and is not a valid model identifier|Repo id must be in the form|\
         does not appear to have a file named|Repository Not Found",
        "the model was not found, or the hub gives no access to it",
        "Give model_path as a folder that holds the model, or as a name on the Hugging Face hub that this machine reaches \
         (HF_TOKEN for a gated one).",
    ),
    (
        "ModuleNotFoundError: No module named|ImportError: cannot import name",
        "a Python module is missing, or of another version",
        "Install what the line names, or give the Python of the environment that SGLang was installed in.",
    ),
];

/// What a system says of a port that is another's.
const IN_USE: &str = "address already in use";
/// Lines of its log that are shown.
const LINES: usize = 20;
/// Bytes of its log that are looked at for a cause: SGLang says more than a screen after it.
const LOOKED_AT: u64 = 65_536;
/// Characters of a line that are shown with the cause.
const SHOWN: usize = 200;

/// All that there is to say of a process that does not do what it was started for: what happened to it, and its status if it
/// ended.
pub(super) fn failure(
    name: &str,
    line: &CommandLine,
    log: &Path,
    happened: &str,
    status: Option<ExitStatus>,
) -> anyhow::Error {
    let command = line.to_string();
    let mut said = said(log, &command);
    for secret in line.secrets() {
        said = said.replace(secret, MASK);
    }
    let why = cause(&said, status).unwrap_or_else(|| "its log may say why".to_owned());
    let is_said = |line: &&str| !line.trim().is_empty();
    let lines: Vec<&str> = said.lines().filter(is_said).collect();
    let tail = match &lines[lines.len().saturating_sub(LINES)..] {
        [] => " (empty)".to_owned(),
        tail => format!(", which ends with\n  {}", tail.join("\n  ")),
    };
    let log = log.display();
    anyhow!("{name} {happened}: {why}\n  command: {command}\n  log: {log}{tail}")
}

/// Whether a server has said that its port is another's, as uvicorn does, which need not end it.
pub(super) fn cannot_listen(log: &Path, line: &CommandLine) -> bool {
    let said = said(log, &line.to_string());
    let mut lines = said.lines();
    lines.any(|line| line.contains("attempting to bind on address") && line.contains(IN_USE))
}

/// What a process wrote to its log last, since it was started with `command` last.
fn said(log: &Path, command: &str) -> String {
    let said = String::from_utf8_lossy(&tail(log).unwrap_or_default()).into_owned();
    match said.rsplit_once(&format!("$ {command}\n")) {
        Some((_, last)) => last.to_owned(),
        None => said,
    }
}

/// A log's last bytes: it may have grown large, and is looked at again and again.
fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let mut log = File::open(log)?;
    let end = log.metadata()?.len();
    log.seek(SeekFrom::Start(end.saturating_sub(LOOKED_AT)))?;
    let mut said = Vec::new();
    log.take(LOOKED_AT).read_to_end(&mut said)?;
    Ok(said)
}

/// The likely cause and what helps; `None` where nothing that is known was said.
fn cause(said: &str, status: Option<ExitStatus>) -> Option<String> {
    let known = KNOWN.iter().find_map(|(words, what, remedy)| {
        let has_one = |line: &&str| words.split('|').any(|word| line.contains(word));
        // Of several lines the last: what failed first is often tried again in another way.
        let line = said.lines().rev().find(has_one)?.trim();
        let mut shown: String = line.chars().take(SHOWN).collect();
        if shown.len() < line.len() {
            shown.push('…');
        }
        Some(format!("{what} (\"{shown}\"). {remedy}"))
    });
    let is_killed = status.and_then(|status| status.signal()) == Some(Signal::SIGKILL as i32);
    known.or_else(|| {
        let killed = "it was killed, mostly by the system when the host's memory ran out. Free memory on this machine \
                      or start fewer servers on it; `dmesg -T | grep -i oom` shows that.";
        is_killed.then(|| killed.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// What SGLang 0.5.23 on CPU, torch, transformers, the router 0.3.2 and our own programs said, and behind `= ` what is told of it; those
    /// in front as they were provoked, the others from their sources.
    const SAID: &str = "tests/data/experiment/said.txt";

    #[test]
    fn what_real_programs_say_has_a_cause_and_a_remedy() {
        let known = std::fs::read_to_string(SAID).unwrap();
        let told = known.trim_end().split("\n\n").map(|block| {
            let (said, _) = block.rsplit_once("\n= ").unwrap_or((block, ""));
            format!("{said}\n= {}\n", cause(said, None).unwrap())
        });
        let told = told.collect::<Vec<_>>().join("\n");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(SAID, &told).unwrap();
        }
        assert_eq!(told, known, "UPDATE_DOCS=1 takes it over");
        let long = cause(&format!("CUDA out of memory {}", "ä".repeat(500)), None).unwrap();
        assert!(
            long.chars().count() < 500 && long.contains("…\"). Lower"),
            "{long}"
        );
        let by_signal = |number| cause("loading weights", Some(ExitStatus::from_raw(number)));
        let killed = by_signal(Signal::SIGKILL as i32).unwrap();
        assert!(
            killed.contains("was killed") && killed.contains("dmesg"),
            "{killed}"
        );
        assert_eq!((by_signal(256), cause("", None)), (None, None));
    }

    #[test]
    fn of_a_large_log_only_the_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        let mut log = File::create(&path).unwrap();
        // A hole, of more than memory holds.
        log.set_len(1 << 42).unwrap();
        log.seek(SeekFrom::End(0)).unwrap();
        let said = "ERROR: attempting to bind on address ('127.0.0.1', 1): address already in use";
        writeln!(log, "{said}").unwrap();
        assert!(cannot_listen(&path, &CommandLine::new("x", &[])));
    }
}
