//! The way of one request over the upstreams: which it was given to, which failed it, whether another may try.

use std::sync::Arc;

use super::{Chosen, Upstreams};

/// One request's upstreams. It keeps those that it began with, whatever a reload brings.
#[derive(Debug, Default)]
pub struct Route {
    upstreams: Option<Arc<Upstreams>>,
    chosen: Option<Chosen>,
    /// Those that could not be connected to, or broke.
    tried: Vec<usize>,
    resent: bool,
}

impl Route {
    /// Gives the request to the next upstream, of `present` if it has none yet; `None` when all have failed it.
    pub fn next(
        &mut self,
        present: impl FnOnce() -> Arc<Upstreams>,
    ) -> Option<(&Upstreams, &Chosen)> {
        // What failed it has it no longer.
        self.chosen = None;
        let upstreams = self.upstreams.get_or_insert_with(present);
        self.chosen = upstreams.choose(&self.tried);
        self.chosen.as_ref().map(|chosen| (&**upstreams, chosen))
    }

    /// The request has a connection; `is_new` when it is its first.
    pub fn connected(&self, is_new: bool) {
        if let Some(chosen) = self.chosen.as_ref().filter(|_| is_new) {
            chosen.upstream().connected();
        }
    }

    /// No connection came about; `is_theirs` when that is the upstream's fault. Whether another may try.
    pub fn connection_failed(&mut self, is_theirs: bool) -> bool {
        let (Some(upstreams), Some(chosen)) = (&self.upstreams, &self.chosen) else {
            return false;
        };
        if is_theirs {
            upstreams.connection_failed(chosen.upstream());
        }
        self.tried.push(chosen.index());
        self.tried.len() < upstreams.count()
    }

    /// The connection broke before an answer. Whether the request can be sent again: once, and to another
    /// upstream if there is one that has not failed it.
    pub fn broke(&mut self) -> bool {
        let (Some(upstreams), Some(chosen)) = (&self.upstreams, &self.chosen) else {
            return false;
        };
        if self.tried.len() + 1 < upstreams.count() {
            self.tried.push(chosen.index());
        }
        !std::mem::replace(&mut self.resent, true)
    }

    /// The request has ended: nobody has it any more.
    pub fn end(&mut self) {
        self.chosen = None;
    }
}
