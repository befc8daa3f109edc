//! What can be used, but is probably not what was meant.

use std::net::IpAddr;
use std::time::Duration;

use crate::config::check::Credentials;
use crate::config::proxy::{Config, Worker};
use crate::request::attempt::UpstreamKind;
use crate::upstream::Address;

use super::{has_hops, is_router};

/// After so much idleness SGLang closes a connection.
const SGLANG_IDLE: Duration = Duration::from_secs(5);

/// A line each.
pub(super) fn of(config: &Config, credentials: &Credentials) -> Vec<String> {
    let mut all = Vec::new();
    if !config.admin.ip().is_loopback() && credentials.admin_token.is_none() {
        all.push(format!(
            "admin = \"{}\": other machines can reach it, and it names servers; listen on 127.0.0.1, or set admin_token",
            config.admin
        ));
    }
    if config.rules.upstream_idle_timeout_s.get() >= SGLANG_IDLE {
        all.push(format!(
            "upstream_idle_timeout_s = {}: SGLang closes idle connections after 5 s, and requests that run \
             into that get a 502; 4 is right for it",
            config.rules.upstream_idle_timeout_s.get().as_secs_f64()
        ));
    }
    match config.rules.max_concurrent_requests.get() {
        0 if !config.rules.queue_timeout_s.get().is_zero() => all.push(format!(
            "queue_timeout_s = {}: nothing waits, as max_concurrent_requests is 0",
            config.rules.queue_timeout_s.get().as_secs_f64()
        )),
        most if most > 0 && is_router(config) && !has_hops(config, credentials) => all.push(format!(
            "max_concurrent_requests = {most}: what is beyond it waits in this front, no longer in the router, and without hops \
             `queue_time_in_router` stays empty; add a [[worker]] for each server, or leave it to the router"
        )),
        _ => {}
    }
    if config.upstream.is_empty() && credentials.hop_secret.is_none() {
        all.push(
            "hop_secret: is not given, so the front will take off what these hops stamp and not use it; give the same \
             to the front and here"
                .into(),
        );
    }
    let workers = config.workers.iter();
    workers.for_each(|worker| hop_warnings(&mut all, config, worker));
    all
}

fn hop_warnings(all: &mut Vec<String>, config: &Config, worker: &Worker) {
    let (name, listen) = (&worker.name, worker.listen);
    let is_told = config.upstream.iter().any(|to| to.is_at(listen));
    if config.upstream_kind == UpstreamKind::Server && !is_told {
        all.push(format!(
            "worker {name}: nothing sends to {listen}: upstream_kind is \"server\" and upstream does not name it"
        ));
    }
    if config.upstream.is_empty() && is_near(&worker.upstream) && worker.host.is_none() {
        all.push(format!(
            "worker {name}: records call its server {}, as hops on other hosts may call theirs; give it a host, as in \
             host = \"gpu1:30000\"",
            worker.called()
        ));
    }
    let far = config.upstream.iter().find(|to| !is_near(to));
    if let Some(router) =
        far.filter(|_| config.upstream_kind == UpstreamKind::Router && listen.ip().is_loopback())
    {
        all.push(format!(
            "worker {name}: listens on {listen}, which a router at {} cannot reach",
            router.name()
        ));
    }
}

/// Whether an address may be on this machine. A name may.
fn is_near(address: &Address) -> bool {
    let host = address.host().parse::<IpAddr>();
    host.map_or(true, |ip| ip.is_loopback() || ip.is_unspecified())
}
