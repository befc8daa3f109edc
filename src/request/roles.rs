//! The roles of servers, if prefill and decode are servers of their own, as far as they have reported them.

use std::collections::{BTreeMap, VecDeque};

use super::attempt::{ServerRole, SpanId};

/// The role of each worker's server.
#[derive(Debug, Default)]
pub struct Roles {
    /// By worker; `None` for a server that does all of a request.
    by_worker: BTreeMap<String, Option<ServerRole>>,
    /// Attempts at servers of unknown role, newest first: the parent of the server's spans, and the worker.
    pending: VecDeque<(u64, String)>,
}

/// The maximum number of such attempts.
const MAX_PENDING: usize = 1024;

impl Roles {
    /// Returns the role of a worker's server, if known.
    pub fn of(&self, worker: &str) -> Option<Option<ServerRole>> {
        self.by_worker.get(worker).copied()
    }

    /// Sets the role that a worker's server reported.
    pub fn learn(&mut self, worker: &str, role: Option<ServerRole>) {
        self.by_worker.insert(worker.to_owned(), role);
    }

    /// Forgets the role of a worker that has another server now.
    pub fn forget(&mut self, worker: &str) {
        self.by_worker.remove(worker);
        self.pending.retain(|(_, of)| of != worker);
    }

    /// Takes an attempt at a worker: if its role is unknown, it is looked for in the server's spans, which will have `span` as
    /// their parent.
    pub fn expect_role(&mut self, span: SpanId, worker: &str) {
        if !self.by_worker.contains_key(worker) {
            self.pending.push_front((span.number(), worker.to_owned()));
            self.pending.truncate(MAX_PENDING);
        }
    }

    /// Takes the role that the root of a server's spans names; `span` is the root's parent.
    pub fn resolve_role(&mut self, span: u64, role: ServerRole) {
        let index = self.pending.iter().position(|(of, _)| *of == span);
        if let Some((_, worker)) = index.and_then(|index| self.pending.remove(index)) {
            self.by_worker.entry(worker).or_insert(Some(role));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_span_sets_a_servers_role_unless_the_server_has_reported_one() {
        let mut roles = Roles::default();
        let span = |number| SpanId::new(number).unwrap();
        for number in 1..=2 * MAX_PENDING as u64 {
            roles.expect_role(span(number), "p0");
        }
        roles.resolve_role(1, ServerRole::Decode);
        assert_eq!(roles.of("p0"), None, "that is long ago");
        roles.resolve_role(2 * MAX_PENDING as u64, ServerRole::Prefill);
        assert_eq!(roles.of("p0"), Some(Some(ServerRole::Prefill)));
        roles.learn("w0", None);
        roles.expect_role(span(7), "w0");
        roles.resolve_role(7, ServerRole::Decode);
        assert_eq!(roles.of("w0"), Some(None));
        roles.forget("w0");
        assert_eq!(roles.of("w0"), None);
    }
}
