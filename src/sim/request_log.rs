//! The request log of `--export-metrics-to-file`: a JSON line per request, as SGLang writes it, in one file per hour.

use std::fs::OpenOptions;
use std::io::Write as _;

use bytes::BytesMut;
use serde_json::{Value, json};

use crate::clock::Stamp;

use super::meta_info;
use super::sequence::Sequence;
use super::shared::Accepted;

/// Appends the line of a sequence that has ended to the file of the hour (in UTC; SGLang uses the machine's time zone), if the log
/// is enabled. A line that cannot be written is lost and reported in our own log.
pub(super) fn append(accepted: &Accepted, sequence: &Sequence) {
    let Some(folder) = &accepted.shared.request_log else {
        return;
    };
    let now = accepted.shared.clock.now();
    let hour = now.utc().strftime("%Y%m%d_%H");
    let path = folder.join(format!("sglang-request-metrics-{hour}.log"));
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let line = line(accepted, sequence, now);
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        let folder = folder.display();
        log::error!("--export-metrics-to-file-dir {folder}: {error}; a line is lost");
    }
}

/// Renders the line: of SGLang's request parameters only the id, `stream`, the room and the trace; then `meta_info`.
fn line(accepted: &Accepted, sequence: &Sequence, now: Stamp) -> String {
    let headers = ["traceparent", "tracestate"].into_iter();
    let headers = headers.filter_map(|name| Some((name.to_owned(), accepted.header(name)?.into())));
    let mut parameters = json!({
        "rid": *sequence.rid,
        "stream": accepted.request.stream,
        "external_trace_header": Value::Object(headers.collect()),
    });
    if let Some(bootstrap) = &sequence.bootstrap {
        parameters["bootstrap_host"] = bootstrap.host.as_str().into();
        parameters["bootstrap_port"] = bootstrap.port.into();
        parameters["bootstrap_room"] = bootstrap.room.into();
    }
    let mut out = BytesMut::new();
    meta_info::write(&mut out, accepted, sequence, now);
    let members = String::from_utf8_lossy(&out);
    let members = members.strip_prefix('{').unwrap_or_default();
    let parameters = Value::from(parameters.to_string());
    format!("{{\"request_parameters\":{parameters},{members}\n")
}
