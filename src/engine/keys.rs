//! The `[engine]` sections: the sources of engine reports, and how long rows wait for them.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Value;
use toml::de::Error;

use crate::keys::keys;
use crate::keys::values::{self, Seconds, Whole};
use crate::telemetry::otlp::settings::Protocol;

keys! {
/// What servers report of a request outside of its response: times in their queue, also of streamed chat, which carries none
/// (docs/ENGINE.md). Where one of the two sections below is given, a request's rows wait for that after its end, and are then
/// written with what has come. Requests themselves do not wait. Changed keys take effect at a restart.
Keys {
    /// How long rows wait.
    wait_s: Seconds<0> = Seconds::of::<2>(), Restart;
    /// How long they wait where the client has left, which a server may notice seconds later.
    wait_abort_s: Seconds<0> = Seconds::of::<5>(), Restart;
    /// Requests whose rows may wait, a few KB each, and sequences whose spans or log lines came before their request ended.
    /// Beyond it rows are written at once.
    most_waiting: Whole<1, 1_048_576> = Whole::of::<16_384>(), Restart;
} and {
    /// The servers' traces: `[engine.traces]` in the file.
    traces: Traces = "engine.traces", Restart;
    /// The servers' request logs: `[engine.logs]` in the file.
    logs: Logs = "engine.logs", Restart;
}}

keys! {
/// Servers' spans, by OTLP over gRPC or HTTP. Servers are started with --enable-trace --otlp-traces-endpoint IP:PORT.
Traces {
    /// Where servers send their spans, IP:PORT. Whoever reaches it can tell us times of requests: not for the world.
    listen: Option<SocketAddr> as listen = None, Restart "--engine-traces IP:PORT" like "127.0.0.1:4327";
    /// The collector that gets all of them unchanged: an endpoint as in [telemetry.otlp], or "none". By default that of
    /// [telemetry.otlp], with its headers; a collector that is given here gets no headers.
    forward_to: Option<String> = None, Restart like "http://127.0.0.1:4317";
    /// How they are sent to `forward_to`: "grpc" or "http/protobuf". By default grpc to port 4317, else http/protobuf.
    forward_protocol: Option<Protocol> = None, Restart like "grpc";
    /// Bytes of spans that may wait for `forward_to`; further ones are lost and counted.
    queue_bytes: Whole<65_536, 4_294_967_296> as values::bytes = Whole::of::<33_554_432>(), Restart;
}}

keys! {
/// Servers' request logs, where they are on this disk: sglang-request-metrics-*.log.
Logs {
    /// The folder of servers' request logs, on this disk: that of their --export-metrics-to-file-dir.
    path: Option<PathBuf> = None, Restart "--engine-logs DIR" like "/var/log/sglang";
}}

impl Keys {
    /// Whether any source of engine reports is on.
    pub fn is_on(&self) -> bool {
        self.traces.listen.is_some() || self.logs.path.is_some()
    }
}

fn listen(value: Value) -> Result<Option<SocketAddr>, Error> {
    values::listen_address(value).map(Some)
}
