//! A reply under way: from the engine's updates to the bytes of a stream or of one body.
//!
//! Dropping it unfinished is how hyper says that the client has gone: the drop takes the sequences out
//! of the engine. However it ends, it is entered once into the server's own log.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http::HeaderMap;
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;

use super::call::Call;
use super::disaggregation::Mode;
use super::driver::{Command, Listener, Submission, Update};
use super::engine::{EventKind, Request};
use super::failures::Fate;
use super::handover::{self, until};
use super::sequence::{Ending, Sequence};
use super::served::{KEPT, Outcome, Served};
use super::shared::{Exchange, Shared};
use super::wire::DONE;
use super::{openai, request_log, spans, wire};

/// A generation request that the engine works on.
#[derive(Debug)]
pub(super) struct Reply {
    exchange: Exchange,
    cut: Option<Cut>,
    source: Source,
    /// Sequences that have not ended.
    open: usize,
    /// The last byte was handed out.
    complete: bool,
}

/// Where a reply ends before its time.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Tokens that are still told.
    tokens: u64,
    /// With its connection; else nothing comes any more.
    dies: bool,
}

/// Where a reply's updates come from.
#[derive(Debug)]
enum Source {
    Engine(
        mpsc::UnboundedReceiver<Update>,
        mpsc::UnboundedSender<Update>,
    ),
    /// `--instant`: everything at once, round by round; the next sequence of the round.
    Instant(usize),
}

/// A streamed reply: every event a frame of its own, so a chunk of its own.
#[derive(Debug)]
pub(super) struct Events {
    reply: Reply,
    ready: VecDeque<Bytes>,
    buffer: BytesMut,
    /// The sequence that spoke last.
    spoke: usize,
    ended: bool,
}

/// The engine stopped with the server while it worked on the reply.
#[derive(Debug, thiserror::Error)]
#[error("the engine has stopped")]
pub(super) struct EngineStopped;

/// Hands sequences to the engine: those of a prefill server when decode has a place for them.
fn submit(shared: &Arc<Shared>, sequences: &[Sequence], due: Stamp) -> Source {
    let (updates, receiver) = mpsc::unbounded_channel();
    let mode = shared.mode();
    let submission = |sequence: &Sequence| Submission {
        request: Request {
            id: sequence.id,
            prompt: sequence.prompt.clone().into(),
            output_tokens: to_make(sequence, mode),
        },
        due,
        listener: Listener {
            rid: sequence.rid.clone(),
            index: sequence.index,
            rank: 0,
            updates: updates.clone(),
        },
    };
    let submissions = sequences.iter().map(submission);
    if mode == Mode::Prefill {
        for (submission, sequence) in submissions.zip(sequences) {
            let room = sequence.bootstrap.as_ref().map_or(0, |meet| meet.room);
            tokio::spawn(handover::prefill(shared.clone(), submission, room));
        }
    } else {
        let submissions = submissions.collect();
        shared.driver.send(Command::Submit(submissions));
    }
    Source::Engine(receiver, updates)
}

/// Tokens that a server makes of an answer: one that prefills makes the first.
fn to_make(sequence: &Sequence, mode: Mode) -> u32 {
    match mode {
        Mode::Prefill => 1,
        _ => sequence.wanted,
    }
}

impl Reply {
    /// Hands the call to the engine.
    pub(super) fn begin(
        shared: Arc<Shared>,
        mut call: Call,
        headers: HeaderMap,
        received: Stamp,
        fate: Fate,
    ) -> Reply {
        let late_ms = match fate {
            Fate::Slow(ms) => f64::from(ms),
            _ => 0.0,
        };
        let tokenize_s = match shared.config.instant {
            true => 0.0,
            false => shared.config.profile.tokenize_s(call.prompt_tokens()),
        };
        let dispatched = received.plus_seconds(tokenize_s);
        let dispatched = dispatched.plus_seconds(late_ms / 1e3);
        let open = call.sequences.len();
        let first = shared.next_id.fetch_add(open as u64, Ordering::Relaxed);
        for (id, sequence) in (first..).zip(&mut call.sequences) {
            sequence.id = id;
            if shared.mode() == Mode::Prefill {
                let from = dispatched.plus_nanos(handover::PREPARE_NANOS);
                sequence.moments.bootstrap_start = Some(from);
            }
        }
        let source = if shared.config.instant {
            for index in 0..open {
                for kind in [EventKind::Queued, EventKind::Admitted { cached: 0 }] {
                    call.sequences[index].apply(&at_once(index, dispatched, kind));
                }
            }
            Source::Instant(0)
        } else {
            submit(&shared, &call.sequences, dispatched)
        };
        Reply {
            cut: Cut::of(fate, &call.sequences, shared.mode()),
            exchange: Exchange {
                shared,
                call,
                headers,
                received,
                dispatched,
            },
            source,
            open,
            complete: false,
        }
    }

    /// The next thing that a client is told, already entered into its sequence: the sequence's index.
    /// `None` when all sequences have ended.
    async fn next(&mut self) -> Result<Option<usize>, EngineStopped> {
        if let Some(cut) = self.cut.filter(|cut| cut.tokens == 0) {
            if !cut.dies {
                return pending().await;
            }
            // Asked once more the socket has what came before.
            yield_now().await;
            return Err(EngineStopped);
        }
        while self.open > 0 {
            let update = match &mut self.source {
                Source::Engine(updates, _) => updates.recv().await.ok_or(EngineStopped)?,
                Source::Instant(turn) => {
                    // One that comes late comes so here, too.
                    until(&self.exchange.shared, self.exchange.dispatched).await;
                    instant(turn, &self.exchange)
                }
            };
            if self.apply(&update, true) {
                if let Some(cut) = &mut self.cut {
                    cut.tokens = cut.tokens.saturating_sub(1);
                }
                return Ok(Some(update.index));
            }
        }
        Ok(None)
    }

    /// Enters an update into its sequence, of which all is told outside of the reply when it has ended; says whether
    /// the update is one that an event tells the client, who listens or has left.
    fn apply(&mut self, update: &Update, listens: bool) -> bool {
        let sequence = &mut self.exchange.call.sequences[update.index];
        if let (EventKind::Reserved, Source::Engine(_, updates), Some(bootstrap)) =
            (update.kind, &self.source, &sequence.bootstrap)
        {
            let shared = self.exchange.shared.clone();
            let of = (sequence.id, *update);
            let receiving = handover::receive(shared, bootstrap.clone(), of, updates.clone());
            tokio::spawn(receiving);
        }
        let was_open = sequence.ending.is_none();
        let told = sequence.apply(update);
        if was_open && sequence.ending.is_some() {
            self.open -= 1;
            let (exchange, sequence) =
                (&self.exchange, &self.exchange.call.sequences[update.index]);
            spans::send(exchange, sequence, update.told);
            if let (Some(log), true) = (&exchange.shared.request_log, listens) {
                let now = exchange.shared.clock.now();
                log.append(&request_log::line(exchange, sequence, now), now);
            }
        }
        told
    }

    /// Waits for the end and gives the whole body, or `None` if the queue was full.
    ///
    /// # Errors
    /// [`EngineStopped`] when the server shuts down meanwhile.
    pub(super) async fn whole(mut self) -> Result<Option<Bytes>, EngineStopped> {
        while let Some(index) = self.next().await? {
            if self.exchange.call.sequences[index].ending == Some(Ending::Rejected) {
                return Ok(None);
            }
        }
        let mut out = BytesMut::new();
        let now = self.exchange.shared.clock.now();
        match self.exchange.call.endpoint {
            Endpoint::Generate => wire::reply(&mut out, &self.exchange, now),
            _ => openai::reply(&mut out, &self.exchange, now),
        }
        self.complete = true;
        Ok(Some(out.freeze()))
    }

    /// The events of a stream.
    pub(super) fn events(self) -> Events {
        Events {
            reply: self,
            ready: VecDeque::new(),
            buffer: BytesMut::new(),
            spoke: 0,
            ended: false,
        }
    }

    fn outcome(&self) -> Outcome {
        let sequences = &self.exchange.call.sequences;
        let ended =
            |wanted: fn(Ending) -> bool| sequences.iter().any(|one| one.ending.is_some_and(wanted));
        if ended(|ending| ending == Ending::Rejected) {
            Outcome::Rejected
        } else if !self.complete
            || ended(|ending| matches!(ending, Ending::Lost | Ending::Aborted(_)))
        {
            Outcome::Aborted
        } else {
            Outcome::Finished
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

/// The next token of `--instant`, made at the moment the request was handed over. Some sequence is still open.
fn instant(turn: &mut usize, exchange: &Exchange) -> Update {
    let sequences = &exchange.call.sequences;
    let round = (0..sequences.len()).map(|step| (*turn + step) % sequences.len());
    let mut open = round.filter(|index| sequences[*index].ending.is_none());
    let index = open.next().unwrap_or_default();
    *turn = index + 1;
    let last = sequences[index].made() + 1 >= to_make(&sequences[index], exchange.shared.mode());
    at_once(index, exchange.dispatched, EventKind::Token { last })
}

/// What becomes of a sequence where no engine works.
fn at_once(index: usize, at: Stamp, kind: EventKind) -> Update {
    Update {
        index,
        rank: 0,
        at,
        told: at,
        kind,
    }
}

impl Cut {
    fn of(fate: Fate, sequences: &[Sequence], mode: Mode) -> Option<Cut> {
        let (share, dies) = match fate {
            Fate::Dies(share) => (share, true),
            Fate::Hangs(share) => (share, false),
            _ => return None,
        };
        let made = sequences.iter().map(|one| u64::from(to_make(one, mode)));
        let tokens = (share * made.sum::<u64>() as f64) as u64;
        Some(Cut { tokens, dies })
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // What the engine told and no client asked for any more still belongs into the account.
        while let Source::Engine(updates, _) = &mut self.source {
            let Ok(update) = updates.try_recv() else {
                break;
            };
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
        if !left.is_empty() && !shared.config.instant {
            let left = left.iter().map(|one| one.id).collect();
            shared.driver.send(Command::Abort(left));
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

impl Events {
    /// Waits for the first event. The OpenAI endpoints send their head only with it (`/generate` sends it
    /// at once, before the request is scheduled): seen in every recording.
    ///
    /// # Errors
    /// [`EngineStopped`] when the server shuts down meanwhile.
    pub(super) async fn opened(mut self) -> Result<Events, EngineStopped> {
        self.fill().await?;
        Ok(self)
    }

    /// As the frames of a body.
    pub(super) fn frames(self) -> impl Stream<Item = Result<Frame<Bytes>, EngineStopped>> {
        stream::try_unfold(self, |mut events| async move {
            events.fill().await?;
            let event = events.ready.pop_front();
            events.reply.complete |= events.ended && events.ready.is_empty();
            Ok(event.map(|event| (Frame::data(event), events)))
        })
    }

    /// Waits until an event is ready to be handed out, or the stream has ended.
    async fn fill(&mut self) -> Result<(), EngineStopped> {
        while self.ready.is_empty() && !self.ended {
            match self.reply.next().await? {
                Some(index) => self.tell(index),
                None => self.tell_end(),
            }
        }
        Ok(())
    }

    /// Renders what sequence `index` has to tell.
    fn tell(&mut self, index: usize) {
        self.spoke = index;
        let exchange = &mut self.reply.exchange;
        let now = exchange.shared.clock.now();
        let sequence = &exchange.call.sequences[index];
        if exchange.call.endpoint == Endpoint::Generate {
            wire::event(&mut self.buffer, exchange, sequence, now);
            self.ready.push_back(self.buffer.split().freeze());
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
        let exchange = &self.reply.exchange;
        if exchange.call.endpoint != Endpoint::Generate {
            let mut send = |event| self.ready.push_back(event);
            let last = &exchange.call.sequences[self.spoke];
            openai::tail(exchange, last, &mut send);
        }
        self.ready.push_back(Bytes::from_static(DONE.as_bytes()));
        self.ended = true;
    }
}
