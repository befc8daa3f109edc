//! Traces, as a collector gets them.

use std::net::SocketAddr;

use queuescope::config::proxy::Config;
use queuescope::telemetry::otlp::settings::Protocol;

use crate::support::proxy::setting;

mod collectors;
mod rotel;
mod tree;
mod trouble;

/// Exports to this place, without waiting for more to send.
fn export_to(config: &mut Config, endpoint: &str, protocol: Protocol) {
    config.otlp.endpoint = Some(endpoint.to_owned());
    config.otlp.protocol = Some(protocol);
    config.otlp.delay_s = setting(0.01);
    config.otlp.timeout_s = setting(10.0);
}

fn url(addr: SocketAddr) -> String {
    format!("http://{addr}")
}
