//! A published data set, brought once to a folder of the user's cache.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::TokioExecutor;
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use ring::digest;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring as provider};

use crate::terminal;
use crate::trust::Roots;

use super::error::Error;
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
/// Where there is no terminal, a line for each so many bytes.
const LINE_BYTES: u64 = 64 << 20;
const MIB: f64 = (1 << 20) as f64;

impl Published<'_> {
    /// The file in the folder `cache`, where it is brought to unless it is there. A `mirror` serves the same paths as
    /// the host.
    ///
    /// # Errors
    /// [`Error::Download`] says what to do instead.
    pub async fn cached(
        &self,
        cache: &Path,
        mirror: Option<&str>,
        connect_timeout: Duration,
    ) -> Result<PathBuf, Error> {
        let path = cache.join(self.name);
        if path.exists() {
            return Ok(path);
        }
        let host = mirror.unwrap_or(self.host).trim_end_matches('/');
        let url = format!("{host}{}", self.path);
        tell(&format!("downloading {url} to {} (once)", path.display()));
        let brought = self.bring(&url, &path, connect_timeout).await;
        let sum = brought.map_err(|why| Error::Download {
            url,
            why,
            path: path.clone(),
        })?;
        tell(&format!("{}: SHA-256 {sum}, as published", path.display()));
        Ok(path)
    }

    /// Brings it, under another name until it is whole and right. The checksum.
    async fn bring(&self, url: &str, path: &Path, timeout: Duration) -> Result<String, String> {
        let words = |cause: io::Error| cause.to_string();
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(words)?;
        }
        let response = answer(url, timeout).await?;
        let mut partial = Partial::new(path).map_err(words)?;
        let sum = partial.fill(response).await?;
        if sum != self.sha256 {
            return Err(format!(
                "what came has the SHA-256 {sum}, but the published file has {}",
                self.sha256
            ));
        }
        partial.keep(path).map_err(words)?;
        Ok(sum)
    }
}

/// Says a line on standard error.
fn tell(line: &str) {
    terminal::complain(&format!("{line}\n"));
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
async fn answer(url: &str, connect_timeout: Duration) -> Result<Response<Incoming>, String> {
    let client: Client<_, Empty<Bytes>> =
        Client::builder(TokioExecutor::new()).build(connector(url, connect_timeout)?);
    let mut uri: Uri = url.parse().map_err(|error| format!("{error}"))?;
    for _ in 0..=MOST_REDIRECTS {
        let request = Request::get(&uri)
            .header(
                header::USER_AGENT,
                concat!("queuescope/", env!("CARGO_PKG_VERSION")),
            )
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let answered = tokio::time::timeout(STALL, client.request(request)).await;
        let response = answered.map_err(|_| format!("no answer in {} s", STALL.as_secs()))?;
        let response = response.map_err(|error| causes(&error))?;
        let status = response.status();
        let location = response.headers().get(header::LOCATION);
        match (status, location) {
            (StatusCode::OK, _) => return Ok(response),
            (status, Some(location)) if status.is_redirection() => {
                let location = location.to_str().map_err(|error| error.to_string())?;
                uri = redirected(&uri, location)?;
            }
            (status, _) => return Err(format!("{uri} answered {status}")),
        }
    }
    Err(format!("more than {MOST_REDIRECTS} redirects"))
}

/// Where a redirect leads.
fn redirected(from: &Uri, location: &str) -> Result<Uri, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("a redirect to `{location}`: {error}");
    let to: Uri = location
        .parse()
        .map_err(|error: http::uri::InvalidUri| wrong(&error))?;
    if to.scheme().is_some() {
        return Ok(to);
    }
    let mut parts = from.clone().into_parts();
    parts.path_and_query = to.into_parts().path_and_query;
    if !location.starts_with('/') || location.starts_with("//") {
        return Err(wrong(&"must be a URL, or begin with one slash"));
    }
    Uri::from_parts(parts).map_err(|error| wrong(&error))
}

fn connector(url: &str, timeout: Duration) -> Result<HttpsConnector<HttpConnector>, String> {
    let roots = match Roots::system() {
        Ok(roots) => roots.store(),
        Err(wrong) if url.starts_with("https:") => return Err(wrong),
        Err(_) => RootCertStore::empty(),
    };
    let tls = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(timeout));
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
    Ok(builder.https_or_http().enable_http1().wrap_connector(http))
}

/// An error and what led to it: hyper's own words alone are `client error (Connect)`.
fn causes(error: &ClientError) -> String {
    let mut words = Vec::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        words.push(error.to_string());
        cause = error.source();
    }
    match words.is_empty() {
        true => error.to_string(),
        false => words.join(": "),
    }
}

/// A file under way, which goes away unless it is kept.
struct Partial {
    path: PathBuf,
    file: File,
    is_kept: bool,
}

impl Partial {
    fn new(whole: &Path) -> io::Result<Partial> {
        let mut name = whole.as_os_str().to_owned();
        // Of this process: another may be bringing the same file.
        name.push(format!(".partial-{}", std::process::id()));
        let path = PathBuf::from(name);
        let file = File::create(&path)?;
        Ok(Partial {
            path,
            file,
            is_kept: false,
        })
    }

    /// Takes the body; its SHA-256.
    async fn fill(&mut self, response: Response<Incoming>) -> Result<String, String> {
        let length = response.headers().get(header::CONTENT_LENGTH);
        let total = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let shown = Shown::new(total);
        let mut sum = digest::Context::new(&digest::SHA256);
        let mut body = response.into_body();
        let mut count = 0_u64;
        loop {
            let frame = tokio::time::timeout(STALL, body.frame()).await;
            let frame = frame.map_err(|_| format!("nothing came for {} s", STALL.as_secs()))?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|error| {
                let cause = std::error::Error::source(&error).map(|cause| format!(" ({cause})"));
                format!(
                    "broke off after {count} bytes: {error}{}",
                    cause.unwrap_or_default()
                )
            })?;
            if let Some(data) = frame.data_ref() {
                self.file
                    .write_all(data)
                    .map_err(|cause| cause.to_string())?;
                sum.update(data);
                count += data.len() as u64;
                shown.at(count, data.len() as u64);
            }
        }
        Ok(hex(sum.finish().as_ref()))
    }

    /// Gives it its name. On the disk before: after a power cut the name must not lead to half a file.
    fn keep(mut self, whole: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, whole)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_kept {
            // Left behind, it is called partial.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A bar on a terminal, else lines.
struct Shown {
    bar: Option<ProgressBar>,
    total: Option<u64>,
}

impl Shown {
    fn new(total: Option<u64>) -> Shown {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let bar = bar.with_finish(ProgressFinish::AndClear);
            let style = "{bar:20} {bytes}/{total_bytes}  {bytes_per_sec}, {eta} to go";
            match ProgressStyle::with_template(style) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Shown { bar, total }
    }

    /// `count` bytes are there, the last `more` of them just now.
    fn at(&self, count: u64, more: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(count),
            None if count / LINE_BYTES > (count - more) / LINE_BYTES => {
                let mib = |bytes: u64| format!("{:.0}", bytes as f64 / MIB);
                let total = self.total.map_or("?".to_owned(), mib);
                tell(&format!("{} of {total} MiB", mib(count)));
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
