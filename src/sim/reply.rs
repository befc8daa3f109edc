//! A reply under way: from the engine's updates to the bytes of a stream or of one body.
//!
//! Dropping it unfinished is how hyper says that the client has gone: the drop takes the sequences out
//! of the engine. However it ends, it is entered once into the server's own log.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http::HeaderMap;
use hyper::body::Frame;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;

use super::call::Call;
use super::disaggregation::Mode;
use super::driver::{Listener, Submission, Update};
use super::engine::{EventKind, Request};
use super::handover;
use super::sequence::Sequence;
use super::served::{KEPT, Outcome, Served};
use super::shared::{Exchange, Shared};
use super::wire::DONE;
use super::{openai, request_log, spans, wire};

/// A generation request that the engine works on.
#[derive(Debug)]
pub(super) struct Reply {
    exchange: Exchange,
    updates: UnboundedReceiver<Update>,
    /// For what is told by others than the engine.
    teller: UnboundedSender<Update>,
    /// Sequences that have not ended.
    open: usize,
    /// Events of a stream that are to be handed out: each becomes a frame of its own, so a chunk of its own.
    ready: VecDeque<Bytes>,
    /// The sequence that spoke last.
    spoke: usize,
    /// No byte comes after those in `ready`.
    is_whole: bool,
}

impl Reply {
    /// Hands the call to the engine: the sequences of a prefill server when decode has a place for them.
    pub(super) fn begin(
        shared: Arc<Shared>,
        mut call: Call,
        headers: HeaderMap,
        received: Stamp,
    ) -> Reply {
        let profile = shared.config.engine_profile();
        let dispatched = received.plus_seconds(profile.tokenize_s(call.prompt_tokens()));
        let mode = shared.mode();
        let (teller, updates) = unbounded_channel();
        let open = call.sequences.len();
        let first = shared.next_id.fetch_add(open as u64, Ordering::Relaxed);
        let mut submissions = Vec::with_capacity(open);
        for (id, sequence) in (first..).zip(&mut call.sequences) {
            sequence.id = id;
            if mode == Mode::Prefill {
                let from = dispatched.plus_nanos(handover::PREPARE_NANOS);
                sequence.moments.bootstrap_start = Some(from);
            }
            // One that prefills makes the first.
            let output_tokens = match mode {
                Mode::Prefill => 1,
                _ => sequence.wanted,
            };
            submissions.push(Submission {
                request: Request {
                    id,
                    prompt: sequence.prompt.clone().into(),
                    output_tokens,
                },
                due: dispatched,
                listener: Listener {
                    rid: sequence.rid.clone(),
                    index: sequence.index,
                    updates: teller.clone(),
                },
            });
        }
        if mode == Mode::Prefill {
            for (submission, sequence) in submissions.into_iter().zip(&call.sequences) {
                let room = sequence.bootstrap.as_ref().map_or(0, |meet| meet.room);
                tokio::spawn(handover::prefill(shared.clone(), submission, room));
            }
        } else {
            shared.driver.submit(submissions);
        }
        Reply {
            exchange: Exchange {
                shared,
                call,
                headers,
                received,
                dispatched,
            },
            updates,
            teller,
            open,
            ready: VecDeque::new(),
            spoke: 0,
            is_whole: false,
        }
    }

    /// The next thing that a client is told, already entered into its sequence: the sequence's index.
    /// `None` when all sequences have ended.
    async fn next(&mut self) -> Option<usize> {
        while self.open > 0 {
            // It does not end: we hold a sender ourselves.
            let update = self.updates.recv().await?;
            if self.apply(&update, true) {
                return Some(update.index);
            }
        }
        None
    }

    /// Enters an update into its sequence, of which all is told outside of the reply when it has ended; says whether
    /// the update is one that an event tells the client, who listens or has left.
    fn apply(&mut self, update: &Update, listens: bool) -> bool {
        let exchange = &mut self.exchange;
        let is_told_at_once = exchange.is_told_at_once();
        let sequence = &mut exchange.call.sequences[update.index];
        if let (EventKind::Reserved, Some(bootstrap)) = (update.kind, &sequence.bootstrap) {
            let of = (sequence.id, *update);
            let (shared, teller) = (exchange.shared.clone(), self.teller.clone());
            tokio::spawn(handover::receive(shared, bootstrap.clone(), of, teller));
        }
        let was_open = sequence.ending.is_none();
        let told = sequence.apply(update);
        if is_told_at_once && sequence.ending.is_some() {
            let moments = &mut sequence.moments;
            moments.first_token = moments.first_token.and(moments.finish);
        }
        if was_open && sequence.ending.is_some() {
            self.open -= 1;
            let sequence = &exchange.call.sequences[update.index];
            spans::send(exchange, sequence, update.told);
            if listens {
                request_log::append(exchange, sequence);
            }
        }
        told
    }

    /// Waits for the end and gives the whole body, or `None` if the queue was full.
    pub(super) async fn whole(mut self) -> Option<Bytes> {
        while let Some(index) = self.next().await {
            if self.exchange.call.sequences[index].ending == Some(EventKind::Rejected) {
                return None;
            }
        }
        let mut out = BytesMut::new();
        let now = self.exchange.shared.clock.now();
        match self.exchange.call.endpoint {
            Endpoint::Generate => wire::reply(&mut out, &self.exchange, now),
            _ => openai::reply(&mut out, &self.exchange, now),
        }
        self.is_whole = true;
        Some(out.freeze())
    }

    /// As the frames of a stream.
    pub(super) fn frames(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
        stream::unfold(self, |mut reply| async move {
            reply.fill().await;
            let event = reply.ready.pop_front()?;
            Some((Ok(Frame::data(event)), reply))
        })
    }

    /// Waits until an event is ready to be handed out, or the stream has ended.
    pub(super) async fn fill(&mut self) {
        while self.ready.is_empty() && !self.is_whole {
            match self.next().await {
                Some(index) => self.tell(index),
                None => self.tell_end(),
            }
        }
    }

    /// Renders what sequence `index` has to tell.
    fn tell(&mut self, index: usize) {
        self.spoke = index;
        let exchange = &mut self.exchange;
        let now = exchange.shared.clock.now();
        let sequence = &exchange.call.sequences[index];
        if exchange.call.endpoint == Endpoint::Generate {
            self.ready.push_back(wire::event(exchange, sequence, now));
        } else {
            let mut send = |event| self.ready.push_back(event);
            openai::chunks(exchange, sequence, &mut send);
        }
        let sequence = &mut exchange.call.sequences[index];
        sequence.moments.first_sent.get_or_insert(now);
        sequence.shown = sequence.made();
    }

    /// Renders what comes after the last token of all.
    fn tell_end(&mut self) {
        let exchange = &self.exchange;
        if exchange.call.endpoint != Endpoint::Generate {
            let mut send = |event| self.ready.push_back(event);
            let last = &exchange.call.sequences[self.spoke];
            openai::tail(exchange, last, &mut send);
        }
        self.ready.push_back(Bytes::from_static(DONE.as_bytes()));
        self.is_whole = true;
    }

    fn outcome(&self) -> Outcome {
        let mut endings = self.exchange.call.sequences.iter().map(|one| one.ending);
        let handed_out = self.is_whole && self.ready.is_empty();
        if endings.clone().any(|one| one == Some(EventKind::Rejected)) {
            Outcome::Rejected
        } else if handed_out && endings.all(|one| matches!(one, Some(EventKind::Token { .. }))) {
            Outcome::Finished
        } else {
            Outcome::Aborted
        }
    }

    fn served(&self, ended_at: Stamp) -> Served {
        let call = &self.exchange.call;
        let header = |name| self.exchange.header(name).map(str::to_owned);
        let earliest =
            |moment: fn(&Sequence) -> Option<Stamp>| call.sequences.iter().filter_map(moment).min();
        let last = call.sequences.iter().filter_map(|s| s.moments.finish).max();
        Served {
            rid: call.sequences[0].rid.to_string(),
            x_request_id: header("x-request-id"),
            traceparent: header("traceparent"),
            received: Some(self.exchange.received),
            queue_start: earliest(|s| s.moments.queue_start),
            queue_end: earliest(|s| s.moments.queue_end),
            first_token: earliest(|s| s.moments.first_token),
            finish: last.filter(|_| self.open == 0).or(Some(ended_at)),
            outcome: self.outcome(),
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // What the engine told and no client asked for any more still belongs into the account.
        while let Ok(update) = self.updates.try_recv() {
            self.apply(&update, false);
        }
        let exchange = &self.exchange;
        let shared = &exchange.shared;
        let now = shared.clock.now();
        let left = exchange.call.sequences.iter();
        let left: Vec<_> = left.filter(|one| one.ending.is_none()).collect();
        for sequence in &left {
            spans::send(exchange, sequence, now);
        }
        if !left.is_empty() {
            let left: Vec<u64> = left.iter().map(|one| one.id).collect();
            shared.driver.abort(&left);
        }
        let served = self.served(now);
        if served.outcome == Outcome::Finished {
            shared.metrics.count(&exchange.call, exchange.received);
        }
        let mut kept = shared.served.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(served);
    }
}
