//! The way of one request over the upstreams: which it was given to, which failed it, whether another may try.

use std::sync::Arc;

use pingora::{Error, ErrorSource, ErrorType};

use crate::upstream::{Chosen, Upstreams};

/// One request's upstreams. It keeps those that it began with, whatever a reload brings.
#[derive(Debug, Default)]
pub struct Route {
    upstreams: Option<Arc<Upstreams>>,
    chosen: Option<Chosen>,
    /// `chosen` has another address to try.
    has_more: bool,
    /// Those that could not be connected to, or broke.
    tried: Vec<usize>,
    /// An answer has begun, be it a `100 Continue`.
    is_answered: bool,
    is_resent: bool,
}

impl Route {
    /// The upstreams that it goes over: `present`, or those that it began with.
    pub fn over(&mut self, present: impl FnOnce() -> Arc<Upstreams>) -> &Upstreams {
        self.upstreams.get_or_insert_with(present)
    }

    /// Gives the request, whose prompt has these blocks, to the next of the upstreams that it goes over, or to the next
    /// address of the same; `None` when all have failed it.
    pub fn next(&mut self, prompt: &[u64]) -> Option<(&Upstreams, &Chosen)> {
        let upstreams = self.upstreams.as_ref()?;
        if !std::mem::take(&mut self.has_more) {
            // What failed it has it no longer.
            self.chosen = None;
            self.chosen = upstreams.choose(&self.tried, prompt);
        }
        self.chosen.as_ref().map(|chosen| (&**upstreams, chosen))
    }

    /// The request has a connection; `is_new` when it is its first.
    pub fn connected(&self, is_new: bool) {
        if let Some(chosen) = self.chosen.as_ref().filter(|_| is_new) {
            chosen.connected();
        }
    }

    /// No connection came about; `is_theirs` when that is the upstream's fault. Whether another may try.
    pub fn connection_failed(&mut self, is_theirs: bool) -> bool {
        let (Some(upstreams), Some(chosen)) = (&self.upstreams, &mut self.chosen) else {
            return false;
        };
        self.has_more = is_theirs && upstreams.connection_failed(chosen);
        if self.has_more {
            return true;
        }
        self.tried.push(chosen.index());
        self.tried.len() < upstreams.count()
    }

    /// Something of an answer came.
    pub fn answered(&mut self) {
        self.is_answered = true;
    }

    /// It ended with `error` after it had a connection. Whether it is sent again: once, before anything of an
    /// answer, and to another upstream if there is one that has not failed it. A request that `is_idempotent`
    /// is, where Pingora finds that the connection was closed before it came; any other may have run, and is
    /// only where the rules say so.
    pub fn broke(&mut self, error: &Error, is_idempotent: bool) -> bool {
        let (Some(upstreams), Some(chosen)) = (&self.upstreams, &self.chosen) else {
            return false;
        };
        let is_broken = *error.esource() == ErrorSource::Upstream
            && matches!(
                error.etype(),
                ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::WriteError
            );
        let may = (is_idempotent && error.retry()) || upstreams.rules().resend_broken;
        if !is_broken || !may || self.is_answered || self.is_resent {
            return false;
        }
        self.is_resent = true;
        if self.tried.len() + 1 < upstreams.count() {
            self.tried.push(chosen.index());
        }
        true
    }

    /// The request has ended: nobody has it any more.
    pub fn end(&mut self) {
        self.chosen = None;
    }
}
