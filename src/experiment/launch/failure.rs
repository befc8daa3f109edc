//! The error of a process that ended or was not ready in time: its command, the end of its log, and the likely cause.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use anyhow::anyhow;

use super::spec::CommandLine;
use crate::secret::MASK;

/// Texts of which a line of the log contains one (separated by `|`), the cause, and the remedy.
type KnownFailure = (&'static str, &'static str, &'static str);

/// Error messages of SGLang 0.5.23, torch, transformers, Python, the router and our own programs, the most certain causes first.
const KNOWN_FAILURES: [KnownFailure; 10] = [
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
        "exit code: -9|exit code -9|signal: 9 (SIGKILL)|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|\
         MemoryError",
        "the host's memory ran out, or somebody killed it",
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

/// How many lines of the log an error shows.
const MAX_LINES: usize = 20;
/// How many bytes of the log are searched for a cause. SGLang prints more than a screen after it.
const MAX_LOG_BYTES: u64 = 65_536;
/// How many characters of a line are shown with the cause.
const MAX_LINE_CHARS: usize = 200;

/// Makes the error of a process. `happened` says what happened to it.
pub(super) fn failure(name: &str, line: &CommandLine, log: &Path, happened: &str) -> anyhow::Error {
    let command = line.to_string();
    let mut output = String::from_utf8_lossy(&tail(log).unwrap_or_default()).into_owned();
    for secret in line.secrets() {
        output = output.replace(secret, MASK);
    }
    let cause = cause(&format!("{happened}\n{output}"));
    let cause = cause.unwrap_or_else(|| "its log may say why".to_owned());
    let is_text = |line: &&str| !line.trim().is_empty();
    let lines: Vec<&str> = output.lines().filter(is_text).collect();
    let tail = match &lines[lines.len().saturating_sub(MAX_LINES)..] {
        [] => " (empty)".to_owned(),
        tail => format!(", which ends with\n  {}", tail.join("\n  ")),
    };
    let log = log.display();
    anyhow!("{name} {happened}: {cause}\n  command: {command}\n  log: {log}{tail}")
}

/// Reads the last bytes of a log, which may be large.
fn tail(log: &Path) -> io::Result<Vec<u8>> {
    let mut log = File::open(log)?;
    let end = log.metadata()?.len();
    log.seek(SeekFrom::Start(end.saturating_sub(MAX_LOG_BYTES)))?;
    let mut bytes = Vec::new();
    log.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the likely cause and its remedy, if the output shows a known failure.
fn cause(output: &str) -> Option<String> {
    KNOWN_FAILURES.iter().find_map(|(texts, cause, remedy)| {
        let has_one = |line: &&str| texts.split('|').any(|text| line.contains(text));
        // The last such line, as programs retry in other ways after a first failure.
        let line = output.lines().rev().find(has_one)?.trim();
        let mut shown: String = line.chars().take(MAX_LINE_CHARS).collect();
        if shown.len() < line.len() {
            shown.push('…');
        }
        Some(format!("{cause} (\"{shown}\"). {remedy}"))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Output of SGLang 0.5.23 on CPU, torch, transformers, the router 0.3.2 and our own programs, each followed by `= ` and the cause. The
    /// first were recorded, the others are from the programs' sources.
    const OUTPUTS: &str = "tests/data/experiment/said.txt";

    #[test]
    fn errors_of_real_programs_have_a_cause_and_a_remedy() {
        let expected = std::fs::read_to_string(OUTPUTS).unwrap();
        let found = expected.trim_end().split("\n\n").map(|block| {
            let (output, _) = block.rsplit_once("\n= ").unwrap_or((block, ""));
            format!("{output}\n= {}\n", cause(output).unwrap())
        });
        let found = found.collect::<Vec<_>>().join("\n");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(OUTPUTS, &found).unwrap();
        }
        assert_eq!(found, expected, "UPDATE_DOCS=1 updates it");
        let long = cause(&format!("CUDA out of memory {}", "ä".repeat(500))).unwrap();
        assert!(
            long.chars().count() < 500 && long.contains("…\"). Lower"),
            "{long}"
        );
        let killed = cause("ended (signal: 9 (SIGKILL))\nloading weights").unwrap();
        assert!(killed.contains("memory ran out"), "{killed}");
        assert_eq!(cause("ended (exit status: 1)\n"), None);
    }

    #[test]
    fn of_a_large_log_only_the_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.log");
        let mut log = File::create(&path).unwrap();
        // Sparse, and larger than memory.
        log.set_len(1 << 42).unwrap();
        log.seek(SeekFrom::End(0)).unwrap();
        writeln!(log, "the last line").unwrap();
        assert!(tail(&path).unwrap().ends_with(b"the last line\n"));
    }
}
