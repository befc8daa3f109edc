//! What servers do where prefill and decode are servers of their own, as far as they told.

use std::collections::{BTreeMap, VecDeque};

use super::attempt::{ServerRole, SpanId};

/// What the server of each worker does.
#[derive(Debug, Default)]
pub struct Roles {
    /// By worker; of one that does all of a request by itself, `None`.
    told: BTreeMap<String, Option<ServerRole>>,
    /// Attempts at servers that have not told it: the spans above those of the server.
    asked: VecDeque<(u64, String)>,
}

/// Attempts that are remembered.
const ASKED: usize = 1024;

impl Roles {
    /// What a worker's server does, if it told.
    pub fn of(&self, worker: &str) -> Option<Option<ServerRole>> {
        self.told.get(worker).copied()
    }

    /// A worker's server told what it does.
    pub fn learn(&mut self, worker: &str, role: Option<ServerRole>) {
        self.told.insert(worker.to_owned(), role);
    }

    /// A server whose spans are to be below this one is asked; what it does is looked for in them, where nobody has told.
    pub fn ask(&mut self, span: SpanId, worker: &str) {
        if !self.told.contains_key(worker) {
            self.asked.push_back((span.number(), worker.to_owned()));
            self.asked.drain(..self.asked.len().saturating_sub(ASKED));
        }
    }

    /// The root of a server's spans, below this one, names what the server does.
    pub fn answer(&mut self, span: u64, role: ServerRole) {
        let place = self.asked.iter().position(|(asked, _)| *asked == span);
        if let Some((_, worker)) = place.and_then(|place| self.asked.remove(place)) {
            self.told.entry(worker).or_insert(Some(role));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_what_the_root_of_its_spans_says_unless_it_told_otherwise() {
        let mut roles = Roles::default();
        let span = |number| SpanId::new(number).unwrap();
        for number in 1..=2 * ASKED as u64 {
            roles.ask(span(number), "p0");
        }
        roles.answer(1, ServerRole::Decode);
        assert_eq!(roles.of("p0"), None, "that is long ago");
        roles.answer(2 * ASKED as u64, ServerRole::Prefill);
        assert_eq!(roles.of("p0"), Some(Some(ServerRole::Prefill)));
        roles.learn("w0", None);
        roles.ask(span(7), "w0");
        roles.answer(7, ServerRole::Decode);
        assert_eq!(roles.of("w0"), Some(None));
    }
}
