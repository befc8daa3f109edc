//! Downloads a published data set once, to the user's cache folder. Uses curl, which handles proxies, redirects and certificates.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use tokio::process::Command;

use super::progress::print_line;
use super::stop::on_own_thread;
use super::workload::source::sha256;
use crate::error::Error;

/// The file that SGLang's and vLLM's benchmarks use as `sharegpt`.
const NAME: &str = "ShareGPT_V3_unfiltered_cleaned_split.json";
const HOST: &str = "https://huggingface.co";
const FOLDER: &str = "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main";
/// The file's checksum, hexadecimal.
const SHA256: &str = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4";

/// Why a download failed.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Follows redirects; gives up a server that sends nothing for a minute.
const CURL_FLAGS: &str =
    "--fail --location --max-redirs 10 --connect-timeout 60 --speed-time 60 --speed-limit 1";

/// Returns the path of ShareGPT in the folder `cache`, and downloads it if it is missing. A `mirror` serves the same paths as the host.
///
/// # Errors
/// The download failed; the message says what to do instead.
pub async fn sharegpt(cache: &Path, mirror: Option<&str>) -> Result<PathBuf, Error> {
    cached(cache, mirror.unwrap_or(HOST), SHA256).await
}

async fn cached(cache: &Path, host: &str, sha256: &str) -> Result<PathBuf, Error> {
    let path = cache.join(NAME);
    if path.exists() {
        return Ok(path);
    }
    let url = format!("{}{FOLDER}/{NAME}", host.trim_end_matches('/'));
    print_line(&format!(
        "downloading {url} to {} (673 MB, once)",
        path.display()
    ));
    let downloaded = download(&url, &path, cache, sha256).await;
    downloaded.map_err(|cause| {
        Error::failed(format!(
            "cannot download {url}: {cause}; bring the file here by other means and name it with --dataset-path FILE, or \
             put it at {}",
            path.display()
        ))
    })?;
    Ok(path)
}

/// Downloads a file under a temporary name, and renames it if its checksum is right. curl shows progress and errors.
async fn download(url: &str, path: &Path, cache: &Path, published: &str) -> Result<(), Cause> {
    std::fs::create_dir_all(cache)?;
    let file = NamedTempFile::new_in(cache)?;
    let mut curl = Command::new("curl");
    let output: &[&str] = match std::io::stderr().is_terminal() {
        true => &["--progress-bar"],
        false => &["--silent", "--show-error"],
    };
    curl.args(CURL_FLAGS.split(' '))
        .args(output)
        .arg("--output");
    curl.arg(file.path()).args(["--url", url]);
    let ended = curl.kill_on_drop(true).status().await;
    let ended = ended.map_err(|cause| format!("curl: {cause}"))?;
    if !ended.success() {
        return Err(format!("curl ended with {ended}").into());
    }
    let downloaded = file.path().to_owned();
    let sum = on_own_thread(move || sha256(&downloaded)).await??;
    if sum != published {
        let message = format!(
            "the downloaded file has the SHA-256 {sum}, but the published one has {published}"
        );
        return Err(message.into());
    }
    file.persist(path)?;
    Ok(())
}

/// Returns this program's folder in the user's cache: `XDG_CACHE_HOME`, or `.cache` in the home folder.
pub fn cache() -> PathBuf {
    let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    // The XDG specification: a relative path is ignored.
    let cache = xdg.filter(|path| path.is_absolute());
    let home = || std::env::home_dir().unwrap_or_default().join(".cache");
    cache.unwrap_or_else(home).join("queuescope")
}

#[cfg(test)]
mod tests;
