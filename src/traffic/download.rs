//! A published data set, brought once to a folder of the user's cache. curl brings it: it knows proxies, redirects and certificates.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ring::digest;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::disk::New;

use super::error::Error;
use super::progress::tell;
use super::workload::source::hex;

/// What SGLang's and vLLM's benchmarks mean by `sharegpt`. 673 MB.
const NAME: &str = "ShareGPT_V3_unfiltered_cleaned_split.json";
const HOST: &str = "https://huggingface.co";
const PLACE: &str = "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main";
/// Of what it is to hold, hexadecimal.
const SHA256: &str = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4";

/// Redirects are followed; a server that sends nothing for a minute is given up.
const CURL: &str = "--fail --silent --show-error --location --max-redirs 10 --connect-timeout 60 --speed-time 60 --speed-limit 1 --url";
/// A line for each so many bytes.
const LINE_BYTES: u64 = 64 << 20;

/// The file in the folder `cache`, where it is brought to unless it is there. A `mirror` serves the same paths as the host.
///
/// # Errors
/// It could not be had; says what to do instead.
pub async fn sharegpt(cache: &Path, mirror: Option<&str>) -> Result<PathBuf, Error> {
    cached(cache, mirror.unwrap_or(HOST), SHA256).await
}

async fn cached(cache: &Path, host: &str, sha256: &str) -> Result<PathBuf, Error> {
    let path = cache.join(NAME);
    if path.exists() {
        return Ok(path);
    }
    let url = format!("{}{PLACE}/{NAME}", host.trim_end_matches('/'));
    tell(&format!("downloading {url} to {} (once)", path.display()));
    let brought = bring(&url, &path, sha256).await;
    let sum = brought.map_err(|why| {
        Error::Failed(format!(
            "cannot download {url}: {why}; bring the file here by other means and name it with --dataset-path FILE, or \
             put it at {}",
            path.display()
        ))
    })?;
    tell(&format!("{}: SHA-256 {sum}, as published", path.display()));
    Ok(path)
}

/// Brings it, under another name until it is whole and right. The checksum.
async fn bring(url: &str, path: &Path, sha256: &str) -> Result<String, String> {
    let words = |cause: io::Error| cause.to_string();
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(words)?;
    }
    let mut file = New::beside(path).map_err(words)?;
    let mut curl = Command::new("curl");
    curl.args(CURL.split(' ')).arg(url).kill_on_drop(true);
    curl.stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut curl = curl.spawn().map_err(|cause| format!("curl: {cause}"))?;
    let mut sum = digest::Context::new(&digest::SHA256);
    let (mut piece, mut count) = (vec![0; 1 << 16], 0_u64);
    if let Some(mut body) = curl.stdout.take() {
        while let read @ 1.. = body.read(&mut piece).await.map_err(words)? {
            let read = piece.get(..read).unwrap_or_default();
            file.write_all(read).map_err(words)?;
            sum.update(read);
            let before = count;
            count += read.len() as u64;
            if count / LINE_BYTES > before / LINE_BYTES {
                tell(&format!("{} MiB", count >> 20));
            }
        }
    }
    let ended = curl.wait_with_output().await.map_err(words)?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        return Err(said.lines().next().unwrap_or("curl failed").to_owned());
    }
    let sum = hex(sum.finish().as_ref());
    if sum != sha256 {
        return Err(format!(
            "what came has the SHA-256 {sum}, but the published file has {}",
            sha256
        ));
    }
    file.put().map_err(words)?;
    Ok(sum)
}

/// Where the user's programs keep what can be had again: `XDG_CACHE_HOME`, or `.cache` in the home folder.
pub fn cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|folder| !folder.is_empty());
    let xdg = folder("XDG_CACHE_HOME").map(PathBuf::from);
    // The XDG rules: a relative path is to be ignored.
    let cache = xdg.filter(|path| path.is_absolute());
    let cache = cache.or_else(|| Some(Path::new(&folder("HOME")?).join(".cache")));
    cache.map(|cache| cache.join("queuescope"))
}

#[cfg(test)]
mod tests;
