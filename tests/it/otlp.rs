//! Traces, as a collector gets them.

use std::net::SocketAddr;

use queuescope::config::proxy::Config;
use queuescope::telemetry::otlp::settings::Protocol;

mod collectors;
mod rotel;
mod tree;
mod trouble;

/// Exports to this place, without waiting for more to send.
fn export_to(config: &mut Config, endpoint: &str, protocol: Protocol) {
    config.otlp.endpoint = Some(endpoint.to_owned());
    config.otlp.protocol = Some(protocol);
    config.otlp.delay_s = 0.01.try_into().unwrap();
    config.otlp.timeout_s = 10.0.try_into().unwrap();
}

fn url(addr: SocketAddr) -> String {
    format!("http://{addr}")
}
