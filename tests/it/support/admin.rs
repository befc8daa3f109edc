//! A client of a proxy's admin listener.

use std::net::SocketAddr;

use super::wire::{Client, Response};

/// Asks the admin listener at `addr`, on a connection of its own.
pub async fn ask(addr: SocketAddr, method: &str, path: &str, extra: &str, body: &str) -> Response {
    let length = body.len();
    let mut client = Client::connect(addr).await;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{extra}");
    client
        .send(format!("{head}content-length: {length}\r\n\r\n{body}"))
        .await;
    client.response().await
}

/// A GET without a body.
pub async fn get(addr: SocketAddr, path: &str) -> Response {
    ask(addr, "GET", path, "", "").await
}

/// The value of a metric in what Prometheus is told, of all its label sets where none is named; 0 when it is not there.
pub fn metric(text: &str, name: &str) -> f64 {
    let lines = text.lines();
    let rest = lines.filter_map(|line| line.strip_prefix(name.trim_end()));
    let of_it = rest.filter(|rest| rest.starts_with([' ', '{']));
    let values = of_it.map(|rest| rest.rsplit(' ').next().unwrap());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

impl Response {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}
