//! The file of a data set: a published one is downloaded once; a file is read and its checksum computed in one pass.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, IsTerminal as _, Read};
use std::path::{Path, PathBuf};

use ring::digest;
use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::error::Error;
use crate::traffic::control::{on_own_thread, print_line};

use super::dataset::Dataset;

/// A file whose SHA-256 is computed as it is read.
pub struct HashedFile {
    inner: File,
    sum: digest::Context,
}

/// Why a download failed.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The file that SGLang's and vLLM's benchmarks use as `sharegpt`.
const NAME: &str = "ShareGPT_V3_unfiltered_cleaned_split.json";
const HOST: &str = "https://huggingface.co";
const FOLDER: &str = "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main";
/// The file's checksum, hexadecimal.
const SHA256: &str = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4";

/// Follows redirects; gives up a server that sends nothing for a minute.
const CURL_FLAGS: &str =
    "--fail --location --max-redirs 10 --connect-timeout 60 --speed-time 60 --speed-limit 1";
/// A byte order mark, which some programs write before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Returns the path of ShareGPT in the user's cache folder, and downloads it if it is missing.
///
/// # Errors
/// The download failed; the message says what to do instead.
pub async fn sharegpt() -> Result<PathBuf, Error> {
    // The variable of Hugging Face's own client. A mirror serves the same paths as the host.
    let mirror = std::env::var("HF_ENDPOINT").ok();
    let mirror = mirror.as_deref().filter(|mirror| !mirror.is_empty());
    cached(&cache(), mirror.unwrap_or(HOST), SHA256).await
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

/// Downloads a file under a temporary name, and renames it if its checksum is right. Uses curl, which handles proxies, redirects and
/// certificates, and shows progress and errors.
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
    let sum = on_own_thread(move || HashedFile::open(&downloaded)?.sum()).await??;
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
fn cache() -> PathBuf {
    let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    // The XDG specification: a relative path is ignored.
    let cache = xdg.filter(|path| path.is_absolute());
    let home = || std::env::home_dir().unwrap_or_default().join(".cache");
    cache.unwrap_or_else(home).join("queuescope")
}

/// Reads the data set in the file at `path` by `parse`, whose error is appended to the file's name.
///
/// # Errors
/// [`Error::usage`] names the file, the line, the member or column, and what is expected.
pub fn read(
    path: &Path,
    parse: impl FnOnce(&mut BufReader<HashedFile>) -> Result<Dataset, String>,
) -> Result<Dataset, Error> {
    let usage = |problem: &dyn Display| {
        let path = path.display();
        Error::usage(format!("--dataset-path {path}{problem}"))
    };
    let read_error = |cause: io::Error| usage(&format_args!(": {cause}"));
    let file = HashedFile::open(path).map_err(read_error)?;
    let mut file = BufReader::with_capacity(1 << 16, file);
    let start = file.fill_buf().map_err(read_error)?;
    if start.starts_with(BYTE_ORDER_MARK) {
        file.consume(BYTE_ORDER_MARK.len());
    }
    let mut dataset = parse(&mut file).map_err(|problem| usage(&problem))?;
    dataset.sha256 = Some(file.into_inner().sum().map_err(read_error)?);
    Ok(dataset)
}

impl HashedFile {
    fn open(path: &Path) -> io::Result<HashedFile> {
        Ok(HashedFile {
            inner: File::open(path)?,
            sum: digest::Context::new(&digest::SHA256),
        })
    }

    /// The SHA-256 of the whole file; reads what is left of it.
    fn sum(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex(self.sum.finish().as_ref()))
    }
}

impl Read for HashedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.sum.update(into.get(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Formats bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
