//! What GPUs tell: by `nvidia-smi`, or a DCGM exporter.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::Asking;
use crate::report::files::SeriesRow;
use crate::report::series::GPU;

/// The share of time in which the GPU did anything, 0 to 1.
pub(super) const USE: &str = "gpu_use";
/// Memory in use, bytes.
pub(super) const MEMORY: &str = "gpu_memory";
/// Bytes of a mebibyte.
pub(super) const MIB: f64 = 1_048_576.0;

/// Who tells of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpu {
    /// This program, of the machine that the experiment runs on.
    NvidiaSmi(PathBuf),
    /// The URL of a DCGM exporter's `/metrics`.
    Dcgm(String),
}

impl Gpu {
    /// `nvidia-smi`, where it is in the PATH.
    pub fn here() -> Option<Gpu> {
        let path = std::env::var_os("PATH")?;
        let mut programs = std::env::split_paths(&path).map(|dir| dir.join("nvidia-smi"));
        programs
            .find(|program| program.is_file())
            .map(Gpu::NvidiaSmi)
    }
}

/// Reads what `nvidia-smi` tells each second, until it is stopped. What there is to say of it. Killed from outside, this
/// process leaves it without a reader, which ends it.
pub(super) async fn nvidia_smi(program: PathBuf, mut asking: Asking) -> Option<String> {
    let name = program.display().to_string();
    let (mut child, mut lines) = match started(&program) {
        Ok(started) => started,
        Err(error) => return Some(format!("no figures of GPUs: {name}: {error}")),
    };
    let mut told = 0_u64;
    loop {
        let line = tokio::select! {
            biased;
            _ = asking.stop.changed() => None,
            line = lines.next_line() => match line {
                Ok(Some(line)) => Some(line),
                _ => return Some(ended(&name, told, child.wait().await.ok())),
            },
        };
        let Some(line) = line else { break };
        let time = asking.clock.now().since(asking.began);
        let rows = rows(&line, time);
        told += u64::from(!rows.is_empty());
        // Whoever writes them ends last.
        let _ = asking.rows.send(rows);
    }
    // It ends by its own when nobody reads; waiting leaves no zombie.
    let _ = child.kill().await;
    (told == 0).then(|| format!("no figures of GPUs: {name} told nothing that can be read"))
}

fn started(program: &PathBuf) -> std::io::Result<(Child, Lines<BufReader<ChildStdout>>)> {
    let mut child = Command::new(program)
        .args([
            "--query-gpu=index,utilization.gpu,memory.used",
            "--format=csv,noheader,nounits",
            "--loop=1",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let out = child.stdout.take();
    let out = out.ok_or_else(|| std::io::Error::other("it has no output"))?;
    Ok((child, BufReader::new(out).lines()))
}

fn ended(name: &str, told: u64, status: Option<std::process::ExitStatus>) -> String {
    let status = status.map_or_else(String::new, |status| format!(" ({status})"));
    format!("figures of GPUs end early: {name} ended{status} after {told} lines")
}

/// `0, 37, 1024`: index, percent, mebibytes; `[N/A]` where the GPU does not tell.
fn rows(line: &str, time: f64) -> Vec<SeriesRow> {
    let mut cells = line.split(',').map(str::trim);
    let Some(index) = cells.next().and_then(|cell| cell.parse::<u32>().ok()) else {
        return Vec::new();
    };
    let values = [(USE, 0.01), (MEMORY, MIB)].into_iter().zip(cells);
    let row = |((metric, factor), cell): ((&str, f64), &str)| {
        Some(SeriesRow {
            time,
            source: GPU.to_owned(),
            server: format!("gpu-{index}"),
            metric: metric.to_owned(),
            value: cell.parse::<f64>().ok()? * factor,
        })
    };
    values.filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_nvidia_smi() {
        let told = |line: &str| {
            let rows = rows(line, 1.5).into_iter();
            rows.map(|row| (row.server, row.metric, row.value))
                .collect::<Vec<_>>()
        };
        let gpu = "gpu-1".to_owned();
        assert_eq!(
            told("1, 37, 2"),
            [
                (gpu.clone(), USE.to_owned(), 0.37),
                (gpu.clone(), MEMORY.to_owned(), 2.0 * MIB)
            ]
        );
        assert_eq!(told("1, [N/A], 2"), [(gpu, MEMORY.to_owned(), 2.0 * MIB)]);
        assert_eq!(told("Unable to determine the device handle"), []);
    }
}
