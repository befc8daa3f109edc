//! A published data set, brought once to a folder of the user's cache.

use std::error::Error as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use ring::digest;
use tokio::time::timeout;

use crate::disk::New;
use crate::telemetry::otlp::collector::{causes, tls};
use crate::trust::Roots;

use super::error::Error;
use super::progress::tell;
use super::workload::source::hex;

/// A file that is published.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    /// Its name in the cache.
    pub name: &'a str,
    /// The host it is on, `https://HOST`.
    pub host: &'a str,
    /// Its path there.
    pub path: &'a str,
    /// SHA-256 of what it is to hold, hexadecimal.
    pub sha256: &'a str,
}

/// What SGLang's and vLLM's benchmarks mean by `sharegpt`. 673 MB.
pub const SHAREGPT: Published<'static> = Published {
    name: "ShareGPT_V3_unfiltered_cleaned_split.json",
    host: "https://huggingface.co",
    path: "/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/main/ShareGPT_V3_unfiltered_cleaned_split.json",
    sha256: "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
};

const MOST_REDIRECTS: usize = 10;
/// A server that sends nothing for so long is given up.
const STALL: Duration = Duration::from_secs(60);
/// A line for each so many bytes.
const LINE_BYTES: u64 = 64 << 20;

impl Published<'_> {
    /// The file in the folder `cache`, where it is brought to unless it is there. A `mirror` serves the same paths as
    /// the host.
    ///
    /// # Errors
    /// It could not be had; says what to do instead.
    pub async fn cached(&self, cache: &Path, mirror: Option<&str>) -> Result<PathBuf, Error> {
        let path = cache.join(self.name);
        if path.exists() {
            return Ok(path);
        }
        let host = mirror.unwrap_or(self.host).trim_end_matches('/');
        let url = format!("{host}{}", self.path);
        tell(&format!("downloading {url} to {} (once)", path.display()));
        let brought = self.bring(&url, &path).await;
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
    async fn bring(&self, url: &str, path: &Path) -> Result<String, String> {
        let words = |cause: io::Error| cause.to_string();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(words)?;
        }
        let response = answer(url).await?;
        let mut file = New::beside(path).map_err(words)?;
        let sum = fill(&mut file, response).await?;
        if sum != self.sha256 {
            return Err(format!(
                "what came has the SHA-256 {sum}, but the published file has {}",
                self.sha256
            ));
        }
        file.put().map_err(words)?;
        Ok(sum)
    }
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

/// The answer of the place that the redirects lead to.
async fn answer(url: &str) -> Result<Response<Incoming>, String> {
    let roots = match Roots::system() {
        Err(wrong) if url.starts_with("https:") => return Err(wrong),
        roots => roots.ok(),
    };
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls(roots.as_ref()).map_err(|error| error.to_string())?)
        .https_or_http();
    let client: Client<_, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build(connector.enable_http1().build());
    let mut uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    for _ in 0..=MOST_REDIRECTS {
        let agent = concat!("queuescope/", env!("CARGO_PKG_VERSION"));
        let request = Request::get(&uri).header(header::USER_AGENT, agent);
        let request = request.body(Empty::new()).map_err(|error| causes(&error))?;
        let answered = timeout(STALL, client.request(request)).await;
        let response = answered.map_err(|_| format!("no answer in {} s", STALL.as_secs()))?;
        // hyper's own words are `client error (Connect)`.
        let response = response.map_err(|error| causes(error.source().unwrap_or(&error)))?;
        let status = response.status();
        match response.headers().get(header::LOCATION) {
            _ if status == StatusCode::OK => return Ok(response),
            Some(location) if status.is_redirection() => {
                let to = String::from_utf8_lossy(location.as_bytes()).into_owned();
                let (scheme, host) = (uri.scheme_str(), uri.authority());
                let to = match (to.starts_with('/'), scheme.zip(host)) {
                    (true, Some((scheme, host))) => format!("{scheme}://{host}{to}"),
                    _ => to,
                };
                let wrong = |error| format!("a redirect to `{to}`: {error}");
                uri = to.parse().map_err(wrong)?;
            }
            _ => return Err(format!("{uri} answered {status}")),
        }
    }
    Err(format!("more than {MOST_REDIRECTS} redirects"))
}

/// Writes the body to a file; its SHA-256.
async fn fill(file: &mut New, response: Response<Incoming>) -> Result<String, String> {
    let mut sum = digest::Context::new(&digest::SHA256);
    let mut body = response.into_body();
    let mut count = 0_u64;
    loop {
        let frame = timeout(STALL, body.frame()).await;
        let frame = frame.map_err(|_| format!("nothing came for {} s", STALL.as_secs()))?;
        let Some(frame) = frame else { break };
        let broken = |error| format!("broke off after {count} bytes: {}", causes(&error));
        if let Ok(data) = frame.map_err(broken)?.into_data() {
            file.write_all(&data).map_err(|error| causes(&error))?;
            sum.update(&data);
            let before = count;
            count += data.len() as u64;
            if count / LINE_BYTES > before / LINE_BYTES {
                tell(&format!("{} MiB", count >> 20));
            }
        }
    }
    Ok(hex(sum.finish().as_ref()))
}

#[cfg(test)]
mod tests;
