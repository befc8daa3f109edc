//! What GPUs tell: by `nvidia-smi`, or a DCGM exporter.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::Log;
use crate::experiment::launch::router::in_path;
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
        in_path("nvidia-smi").map(Gpu::NvidiaSmi)
    }
}

/// Reads what `nvidia-smi` tells each second, until it ends or this is dropped; `note` is what there is to say of it. Killed
/// from outside, this process leaves it without a reader, which ends it.
pub(super) async fn nvidia_smi(program: &Path, log: &Log, note: &mut Option<String>) {
    let name = program.display();
    let mut child = Command::new(program);
    child.args(["--query-gpu=index,utilization.gpu,memory.used"]);
    child.args(["--format=csv,noheader,nounits", "--loop=1"]);
    child
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = match child.kill_on_drop(true).spawn() {
        Ok(child) => child,
        Err(error) => {
            *note = Some(format!("no figures of GPUs: {name}: {error}"));
            return;
        }
    };
    let Some(out) = child.stdout.take() else {
        return;
    };
    let (mut lines, mut told) = (BufReader::new(out).lines(), 0);
    *note = Some(format!(
        "no figures of GPUs: {name} told nothing that can be read"
    ));
    while let Ok(Some(line)) = lines.next_line().await {
        let rows = rows(&line, log.now());
        if !rows.is_empty() {
            told += 1;
            *note = None;
        }
        log.write(&rows);
    }
    let status = child.wait().await;
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    *note = Some(format!(
        "figures of GPUs end early: {name} ended ({status}) after {told} lines"
    ));
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
