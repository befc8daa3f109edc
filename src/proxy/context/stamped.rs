//! What is known of a request so far, for a header; the server that has it.

use crate::proxy::shared::{Role, UpstreamKind};
use crate::request::stamps::Stamps;

use super::Context;

impl Context {
    /// What was stamped so far, for a header.
    pub fn stamps(&self) -> Stamps {
        let (attempts, failed) = self.attempts_so_far();
        let worker = match &self.role {
            Role::Front => None,
            Role::Hop(worker) => Some(worker.to_string()),
        };
        Stamps {
            clock: self.shared.clock_name.clone(),
            now: Some(self.shared.clock.now()),
            arrival: Some(self.arrival),
            request_end: self.request_end,
            forwarded: self.forwarded,
            host: self.host(),
            attempts: Some(attempts),
            is_direct: self.is_at_hop() || self.shared.upstream_kind == UpstreamKind::Server,
            worker,
            span: self.span,
            failed,
            hop: self.hop.clone().map(Box::new),
        }
    }

    pub(super) fn host(&self) -> Option<String> {
        let hop = self.hop.as_ref().and_then(|hop| hop.host.clone());
        let smg = || self.smg_worker.clone();
        hop.or_else(smg).or_else(|| self.own_host())
    }

    /// The server that we send to ourselves, as records call it.
    pub(super) fn own_host(&self) -> Option<String> {
        let given = match &self.role {
            Role::Hop(worker) => self.shared.settings.load().hosts.get(&**worker).cloned(),
            Role::Front if self.shared.upstream_kind == UpstreamKind::Server => None,
            Role::Front => return None,
        };
        let address = || (!self.upstream.is_empty()).then(|| self.upstream.clone());
        given.or_else(address)
    }
}
