//! A proxy under test, and the rows it wrote.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use queuescope::client::takeover::Inherited;
use queuescope::clock::Clock;
use queuescope::config::proxy::{Config, Worker};
use queuescope::config::{self};
use queuescope::serve::lifecycle::Proxy;
use tempfile::TempDir;

use super::admin::{get, metric};
use super::router::free_port;
use super::upstream::{Step, Upstream};
use super::wire::{Client, Response, until};

/// A row of the records file by column.
pub type Row = BTreeMap<String, String>;

/// A running proxy with a records file of its own.
pub struct Front {
    pub proxy: Proxy,
    folder: TempDir,
}

/// A config on free ports.
pub fn config(upstream: &[SocketAddr]) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        admin: "127.0.0.1:0".parse().unwrap(),
        upstream: upstream.iter().copied().map(Into::into).collect(),
        ..Config::default()
    }
}

/// A hop before a server.
pub fn worker(name: &str, listen: impl ToString, server: SocketAddr) -> Worker {
    Worker {
        name: name.into(),
        listen: listen.to_string().parse().unwrap(),
        upstream: server.into(),
        host: None,
        role: None,
    }
}

/// Hops `w0`, `w1` and so on, on free ports.
pub fn workers(servers: &[SocketAddr]) -> Vec<Worker> {
    let servers = servers.iter().enumerate();
    let worker =
        |(n, server): (usize, &SocketAddr)| worker(&format!("w{n}"), "127.0.0.1:0", *server);
    servers.map(worker).collect()
}

/// Hops `w0`, `w1` and so on whose addresses are known before they listen, as a router must know them.
pub fn known_workers(servers: &[SocketAddr]) -> (Vec<SocketAddr>, Vec<Worker>) {
    let hops: Vec<SocketAddr> = servers.iter().map(|_| free_port()).collect();
    let mut workers = workers(servers);
    for (worker, hop) in workers.iter_mut().zip(&hops) {
        worker.listen = *hop;
    }
    (hops, workers)
}

/// The value of a key.
pub fn setting<T: serde::de::DeserializeOwned>(value: impl Into<toml::Value>) -> T {
    value.into().try_into().unwrap()
}

/// A running proxy of this config.
pub async fn started(config: Config, clock: Clock) -> Proxy {
    let credentials = config.check().unwrap();
    let none = &mut Inherited::default();
    let proxy = Proxy::start(config, credentials, clock, none).await;
    proxy.unwrap()
}

/// A server that plays these steps to every request, and a front before it with these keys of a config.
pub async fn playing(steps: Vec<Step>, keys: &str) -> (Upstream, Front) {
    let upstream = Upstream::playing(steps).await;
    let front = Front::keyed(&[upstream.addr], keys).await;
    (upstream, front)
}

/// The same of a server that answers `{}` at once.
pub async fn answering(keys: &str) -> (Upstream, Front) {
    playing(vec![Step::ok()], keys).await
}

impl Front {
    /// A hop without a front.
    pub async fn hop(server: SocketAddr) -> Front {
        Front::hops(&[server], "").await
    }

    /// Hops `w0`, `w1` and so on without a front, with these keys of a config.
    pub async fn hops(servers: &[SocketAddr], keys: &str) -> Front {
        Front::altered(&[], keys, |config| config.workers = workers(servers)).await
    }

    /// A front with these lines of a config, as a file has them below `[proxy]`.
    pub async fn keyed(upstream: &[SocketAddr], keys: &str) -> Front {
        Front::altered(upstream, keys, |_| {}).await
    }

    pub async fn with(upstream: &[SocketAddr], change: impl FnOnce(&mut Config)) -> Front {
        Front::altered(upstream, "", change).await
    }

    /// A front with these lines of a config, and what is changed of what they say.
    pub async fn altered(
        upstream: &[SocketAddr],
        keys: &str,
        change: impl FnOnce(&mut Config),
    ) -> Front {
        let folder = tempfile::tempdir().unwrap();
        let records = folder.path().join("records.csv");
        // A file must name one.
        let listens =
            "upstream = [\"127.0.0.1:1\"]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"";
        let text = format!("[proxy]\n{listens}\nrecords = {records:?}\n{keys}");
        let file = folder.path().join("c.toml");
        std::fs::write(&file, text).unwrap();
        let (mut config, _) = config::load(Some(&file), &config::args::Args::default()).unwrap();
        config.upstream = upstream.iter().copied().map(Into::into).collect();
        change(&mut config);
        let proxy = started(config, Clock::system()).await;
        Front { proxy, folder }
    }

    /// What a reload of this config says, or why it is refused.
    pub async fn reload(&self, config: Config) -> Result<String, Vec<String>> {
        let credentials = config.check();
        let credentials = credentials.map_err(|all| vec![format!("{all:?}")])?;
        self.proxy.reload(config, credentials).await
    }

    /// A front that shares requests out among servers by this policy.
    pub async fn balancing(upstream: &[SocketAddr], policy: &str, keys: &str) -> Front {
        let keys = format!("policy = \"{policy}\"\nupstream_kind = \"server\"\n{keys}");
        Front::keyed(upstream, &keys).await
    }

    /// Where the first hop listens.
    pub fn hop_addr(&self) -> SocketAddr {
        self.proxy.address("worker").unwrap()
    }

    pub async fn start(upstream: SocketAddr) -> Front {
        Front::with(&[upstream], |_| {}).await
    }

    /// Where clients connect: to the front, or the first hop where there is none.
    pub fn addr(&self) -> SocketAddr {
        let front = self.proxy.address("listen");
        front.unwrap_or_else(|| self.hop_addr())
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.addr()).await
    }

    /// One request on a connection of its own, answered whole.
    pub async fn ask(&self, path: &str, extra: &str, body: &[u8]) -> Response {
        self.client().await.ask(path, extra, body).await
    }

    /// A client that has sent this POST.
    pub async fn asked(&self, path: &str, extra: &str, body: &[u8]) -> Client {
        let mut client = self.client().await;
        client.post(path, extra, body).await;
        client
    }

    /// A client that has sent these bytes.
    pub async fn sent(&self, bytes: impl AsRef<[u8]>) -> Client {
        let mut client = self.client().await;
        client.send(bytes).await;
        client
    }

    pub fn records(&self) -> PathBuf {
        self.folder.path().join("records.csv")
    }

    /// Waits for the first row and gives it.
    pub async fn first_row(&self) -> Row {
        let path = self.records();
        until("the row", || !rows(&path).is_empty()).await;
        let mut rows = rows(&path);
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.remove(0)
    }

    /// Waits for the first row, ends the proxy, and gives the only row there is.
    pub async fn only_row(self) -> Row {
        self.first_row().await;
        let mut rows = self.rows().await;
        assert_eq!(rows.len(), 1, "{rows:?}");
        rows.remove(0)
    }

    /// Ends the proxy and gives all rows.
    pub async fn rows(self) -> Vec<Row> {
        self.proxy.drain().await;
        assert_eq!(self.proxy.metrics().in_flight(), 0);
        rows(&self.records())
    }

    /// What its admin listener answers to a GET.
    pub async fn get(&self, path: &str) -> Response {
        get(self.proxy.address("admin").unwrap(), path).await
    }

    /// Ends the proxy, and fails unless it has so many rows, each of this outcome and with this in its error.
    pub async fn all_end(self, count: usize, outcome: &str, piece: &str) {
        let rows = self.rows().await;
        assert_eq!(rows.len(), count, "{rows:?}");
        rows.iter()
            .for_each(|row| assert_outcome(row, outcome, piece));
    }

    /// The value of a counter, of all its label sets where none is named; 0 when it is not there.
    pub fn counter(&self, name: &str) -> u64 {
        metric(&self.proxy.metrics().text(), name) as u64
    }

    pub async fn counts(&self, name: &str, value: u64) {
        until(name, || self.counter(name) == value).await;
    }
}

/// The rows of a records file; only its whole lines count.
pub fn rows(path: &Path) -> Vec<Row> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
    let mut reader = csv::Reader::from_reader(whole.as_bytes());
    let names = reader.headers().unwrap().clone();
    let row = |cells: csv::StringRecord| {
        let cells = cells.iter().map(String::from);
        names.iter().map(String::from).zip(cells).collect()
    };
    reader.records().map(|cells| row(cells.unwrap())).collect()
}

/// The rows of all processes that were given this path: those of its file, and of files that were moved aside.
pub fn all_rows(path: &Path) -> Vec<Row> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let files = entries.map(|entry| entry.unwrap());
    let ours = files.filter(|file| file.file_name().to_string_lossy().starts_with(name));
    ours.flat_map(|file| rows(&file.path())).collect()
}

/// Fails unless these cells are so.
#[track_caller]
pub fn assert_cells<const CELLS: usize>(row: &Row, cells: [(&str, &str); CELLS]) {
    for (column, value) in cells {
        assert_eq!(row[column], value, "{column}: {row:?}");
    }
}

/// The same of `name=value, …`.
#[track_caller]
pub fn assert_row(row: &Row, cells: &str) {
    for (column, value) in cells.split(", ").map(|one| one.split_once('=').unwrap()) {
        assert_eq!(row[column], value, "{column}: {row:?}");
    }
}

/// A cell as a number.
#[track_caller]
pub fn number(row: &Row, column: &str) -> f64 {
    let number = row[column].parse();
    number.unwrap_or_else(|_| panic!("{column}: {row:?}"))
}

/// A time or duration in nanoseconds.
#[track_caller]
pub fn nanos(row: &Row, column: &str) -> i64 {
    let nanos = queuescope::request::cell::nanos(row[column].as_bytes());
    nanos.unwrap_or_else(|| panic!("{column}: {row:?}"))
}

/// Fails unless a row's outcome is this and its error holds `piece`.
#[track_caller]
pub fn assert_outcome(row: &Row, outcome: &str, piece: &str) {
    assert_eq!(row["outcome"], outcome, "{row:?}");
    assert!(row["error"].contains(piece), "{row:?}");
    assert_eq!(row["success"] == "True", outcome == "ok");
}
