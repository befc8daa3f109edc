//! A published data set, brought once to a folder of the user's cache. curl brings it: it knows proxies, redirects and certificates.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use tokio::process::Command;

use super::error::Error;
use super::progress::tell;
use super::stop::aside;
use super::workload::source::sha256;

/// What SGLang's and vLLM's benchmarks mean by `sharegpt`.
const NAME: &str = "ShareGPT_V3_unfiltered_cleaned_split.json";
const HOST: &str = "https://huggingface.co";
const PLACE: &str = "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main";
/// Of what it is to hold, hexadecimal.
const SHA256: &str = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4";

/// Why it could not be had.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Redirects are followed; a server that sends nothing for a minute is given up.
const CURL: &str =
    "--fail --location --max-redirs 10 --connect-timeout 60 --speed-time 60 --speed-limit 1";

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
    tell(&format!(
        "downloading {url} to {} (673 MB, once)",
        path.display()
    ));
    let brought = bring(&url, &path, cache, sha256).await;
    brought.map_err(|why| {
        Error::Failed(format!(
            "cannot download {url}: {why}; bring the file here by other means and name it with --dataset-path FILE, or \
             put it at {}",
            path.display()
        ))
    })?;
    Ok(path)
}

/// Brings it, under another name until it is whole and right. curl shows how far it is, and what went wrong.
async fn bring(url: &str, path: &Path, cache: &Path, right: &str) -> Result<(), Cause> {
    std::fs::create_dir_all(cache)?;
    let file = NamedTempFile::new_in(cache)?;
    let mut curl = Command::new("curl");
    let shown: &[&str] = match std::io::stderr().is_terminal() {
        true => &["--progress-bar"],
        false => &["--silent", "--show-error"],
    };
    curl.args(CURL.split(' ')).args(shown).arg("--output");
    curl.arg(file.path()).args(["--url", url]);
    let ended = curl.kill_on_drop(true).status().await;
    let ended = ended.map_err(|cause| format!("curl: {cause}"))?;
    if !ended.success() {
        return Err(format!("curl ended with {ended}").into());
    }
    let brought = file.path().to_owned();
    let sum = aside(move || sha256(&brought)).await??;
    if sum != right {
        let what = format!("what came has the SHA-256 {sum}, but the published file has {right}");
        return Err(what.into());
    }
    file.persist(path)?;
    Ok(())
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
