//! How a hop tells the front what it stamped, how the front takes that in, and what it tells its client.

use pingora::http::ResponseHeader;

use crate::request::stamps::{FRONT_HEADER, HOP_HEADER, Stamps};

use super::context::Context;

/// Header by which smg 1.13 names the worker that served.
const SMG_WORKER: &str = "x-smg-routed-worker-id";

/// Takes the hop's stamps off a response's head.
pub fn take_hop_stamps(head: &mut ResponseHeader) -> Option<Stamps> {
    let value = head.remove_header(HOP_HEADER)?;
    Stamps::parse(value.to_str().ok()?)
}

/// The server that smg says it chose, `host:port`.
pub fn smg_worker(head: &ResponseHeader) -> Option<String> {
    let value = head.headers.get(SMG_WORKER)?.to_str().ok()?.trim();
    let value = value.strip_prefix("http://").unwrap_or(value);
    let value = value.strip_suffix('/').unwrap_or(value);
    (!value.is_empty()).then(|| value.to_owned())
}

/// Writes the hop's stamps on a response's head.
///
/// # Errors
/// When they cannot stand in a header.
pub fn put_hop_stamps(head: &mut ResponseHeader, context: &Context) -> pingora::Result<()> {
    head.insert_header(HOP_HEADER, context.stamps().render())
}

/// Writes the front's stamps on a response's head, for a client that asked.
///
/// # Errors
/// When they cannot stand in a header.
pub fn put_front_stamps(head: &mut ResponseHeader, context: &Context) -> pingora::Result<()> {
    head.insert_header(FRONT_HEADER, context.stamps().render())
}
