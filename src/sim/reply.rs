//! A reply under way: from the engine's updates to the bytes of a stream or of one body.
//!
//! Dropping it unfinished is how hyper says that the client has gone: the drop takes the sequences out
//! of the engine. However it ends, it is entered once into the server's own log.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

use crate::clock::Stamp;
use crate::request::endpoint::Endpoint;

use super::call::Call;
use super::driver::{Submission, Update, UpdateKind};
use super::engine::Request;
use super::failures::Fate;
use super::outside::{Of, Telling};
use super::sequence::{Ending, Sequence};
use super::served::{Named, Outcome, Served};
use super::shared::Shared;
use super::wire::{DONE, Receipt};

/// A generation request that the engine works on.
#[derive(Debug)]
pub(super) struct Reply {
    shared: Arc<Shared>,
    call: Call,
    named: Named,
    receipt: Receipt,
    telling: Option<Telling>,
    sequences: Vec<Sequence>,
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
    /// What was told before is on its way.
    is_flushed: bool,
}

/// Where a reply's updates come from.
#[derive(Debug)]
enum Source {
    Engine(mpsc::UnboundedReceiver<Update>),
    /// `--instant`: everything at once, round by round; the next sequence of the round.
    Instant(usize),
}

/// The body of a streamed reply: every event a frame of its own, so a chunk of its own.
#[derive(Debug)]
pub(super) struct EventStream {
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

impl Reply {
    /// Hands the call, whose body is `body`, to the engine.
    pub(super) fn begin(
        shared: Arc<Shared>,
        mut call: Call,
        body: &[u8],
        named: Named,
        received: Stamp,
        fate: Fate,
    ) -> Reply {
        let late_ms = match fate {
            Fate::Slow(ms) => f64::from(ms),
            _ => 0.0,
        };
        // Several answers to a prompt stand beside each other.
        let prompts = call.sequences.iter().step_by(call.n.max(1));
        let tokens = prompts.map(|asked| u64::from(asked.prompt_tokens)).sum();
        let tokenized = received.plus_seconds(shared.config.profile.tokenize_s(tokens));
        let dispatched = tokenized.plus_seconds(late_ms / 1e3);
        let receipt = Receipt::new(&call, received, dispatched);
        let of = Of {
            wire: &shared.wire,
            named: &named,
            receipt: &receipt,
        };
        let telling = shared.outside.begin(&call, &of, body);
        let asked = std::mem::take(&mut call.sequences);
        let first = shared
            .next_id
            .fetch_add(asked.len() as u64, Ordering::Relaxed);
        let sequences: Vec<Sequence> = asked
            .into_iter()
            .enumerate()
            .map(|(index, asked)| Sequence::new(first + index as u64, index, asked))
            .collect();
        let source = if shared.config.instant {
            Source::Instant(0)
        } else {
            let (updates, receiver) = mpsc::unbounded_channel();
            let submit = |sequence: &Sequence| Submission {
                request: Request {
                    id: sequence.id,
                    prompt: sequence.prompt.clone(),
                    output_tokens: sequence.wanted,
                },
                rid: sequence.rid.clone(),
                index: sequence.index,
                due: dispatched,
                updates: updates.clone(),
            };
            shared.driver.submit(sequences.iter().map(submit).collect());
            Source::Engine(receiver)
        };
        let mut reply = Reply {
            cut: Cut::of(fate, &sequences),
            shared,
            call,
            named,
            receipt,
            telling,
            open: sequences.len(),
            sequences,
            source,
            complete: false,
        };
        if reply.shared.config.instant {
            for index in 0..reply.sequences.len() {
                let admitted = UpdateKind::Admitted { cached: 0 };
                for kind in [UpdateKind::Queued { rank: 0 }, admitted] {
                    reply.apply(&Update::new(index, received, received, kind), true);
                }
            }
        }
        reply
    }

    /// The next thing that a client is told, already entered into its sequence: the sequence's index.
    /// `None` when all sequences have ended.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<usize>, EngineStopped>> {
        if let Some(cut) = self.cut.as_mut().filter(|cut| cut.tokens == 0) {
            if cut.is_flushed && cut.dies {
                return Poll::Ready(Err(EngineStopped));
            }
            // Who dies is asked once more when the socket has what came before. Of what hangs nobody is woken.
            if cut.dies {
                cut.is_flushed = true;
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        loop {
            if self.open == 0 {
                return Poll::Ready(Ok(None));
            }
            let update = match &mut self.source {
                Source::Engine(updates) => match ready!(updates.poll_recv(cx)) {
                    Some(update) => update,
                    None => return Poll::Ready(Err(EngineStopped)),
                },
                Source::Instant(turn) => instant(turn, &self.sequences, self.receipt.received),
            };
            if !self.apply(&update, true) {
                continue;
            }
            if let Some(cut) = &mut self.cut {
                cut.tokens = cut.tokens.saturating_sub(1);
            }
            return Poll::Ready(Ok(Some(update.index)));
        }
    }

    /// Enters an update into its sequence, and tells it outside of the reply; says whether it is one that an
    /// event tells the client, who listens or has left.
    fn apply(&mut self, update: &Update, listens: bool) -> bool {
        let sequence = &mut self.sequences[update.index];
        let was_open = sequence.ending.is_none();
        let told = sequence.apply(update);
        if let Some(telling) = &mut self.telling {
            let of = Of {
                wire: &self.shared.wire,
                named: &self.named,
                receipt: &self.receipt,
            };
            let now = listens.then(|| self.shared.clock.now());
            telling.update(&self.shared.outside, &of, sequence, update, now);
        }
        if was_open && sequence.ending.is_some() {
            self.open -= 1;
        }
        told
    }

    /// Waits for the end and gives the whole body, or `None` if the queue was full.
    ///
    /// # Errors
    /// [`EngineStopped`] when the server shuts down meanwhile.
    pub(super) async fn whole(mut self) -> Result<Option<Bytes>, EngineStopped> {
        while let Some(index) = poll_fn(|cx| self.poll_next(cx)).await? {
            if self.sequences[index].ending == Some(Ending::Rejected) {
                return Ok(None);
            }
        }
        let mut out = BytesMut::new();
        let (wire, now) = (&self.shared.wire, self.shared.clock.now());
        let (call, receipt, sequences) = (&self.call, &self.receipt, &mut self.sequences);
        if call.endpoint == Endpoint::Generate {
            wire.generate_reply(&mut out, call, receipt, sequences, now);
        } else {
            wire.openai_reply(&mut out, call, receipt, sequences, now);
        }
        self.complete = true;
        Ok(Some(out.freeze()))
    }

    /// The reply as the body of a stream.
    pub(super) fn stream(self) -> EventStream {
        EventStream {
            reply: self,
            ready: VecDeque::new(),
            buffer: BytesMut::new(),
            spoke: 0,
            ended: false,
        }
    }

    fn outcome(&self) -> Outcome {
        let ended = |wanted: fn(&Ending) -> bool| {
            let endings = self.sequences.iter().filter_map(|s| s.ending.as_ref());
            endings.into_iter().any(wanted)
        };
        if ended(|ending| *ending == Ending::Rejected) {
            Outcome::Rejected
        } else if !self.complete || ended(|ending| matches!(ending, Ending::Aborted(_))) {
            Outcome::Aborted
        } else {
            Outcome::Finished
        }
    }

    fn served(&self, ended_at: Stamp) -> Served {
        let earliest =
            |moment: fn(&Sequence) -> Option<Stamp>| self.sequences.iter().filter_map(moment).min();
        let finish = if self.open == 0 {
            self.sequences.iter().filter_map(|s| s.moments.finish).max()
        } else {
            Some(ended_at)
        };
        Served {
            rid: self
                .sequences
                .first()
                .map_or_else(String::new, |s| s.rid.to_string()),
            x_request_id: self.named.x_request_id.clone(),
            traceparent: self.named.traceparent.clone(),
            endpoint: self.call.endpoint.path(),
            stream: self.call.stream,
            sequences: self.sequences.len(),
            prompt_tokens: self
                .sequences
                .iter()
                .step_by(self.call.n.max(1))
                .map(|s| u64::from(s.prompt_tokens))
                .sum(),
            output_tokens: self.sequences.iter().map(|s| u64::from(s.made)).sum(),
            received: Some(self.receipt.received),
            queue_start: earliest(|s| s.moments.queue_start),
            queue_end: earliest(|s| s.moments.queue_end),
            first_token: earliest(|s| s.moments.first_token),
            finish,
            outcome: self.outcome(),
        }
    }
}

/// The next token of `--instant`, made at the moment the request came. Some sequence is still open.
fn instant(turn: &mut usize, sequences: &[Sequence], at: Stamp) -> Update {
    let round = (0..sequences.len()).map(|step| (*turn + step) % sequences.len());
    let mut open = round.filter(|index| sequences[*index].ending.is_none());
    let index = open.next().unwrap_or_default();
    *turn = index + 1;
    let last = sequences[index].made + 1 >= sequences[index].wanted;
    Update::new(index, at, at, UpdateKind::Token { last })
}

impl Cut {
    fn of(fate: Fate, sequences: &[Sequence]) -> Option<Cut> {
        let (share, dies) = match fate {
            Fate::Dies(share) => (share, true),
            Fate::Hangs(share) => (share, false),
            _ => return None,
        };
        let wanted: u64 = sequences.iter().map(|s| u64::from(s.wanted)).sum();
        let tokens = (share * wanted as f64) as u64;
        Some(Cut {
            tokens,
            dies,
            is_flushed: false,
        })
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // What the engine told and no client asked for any more still belongs into the account.
        while let Source::Engine(updates) = &mut self.source {
            let Ok(update) = updates.try_recv() else {
                break;
            };
            self.apply(&update, false);
        }
        let now = self.shared.clock.now();
        if let Some(telling) = &mut self.telling {
            for sequence in &self.sequences {
                telling.ended(&self.shared.outside, sequence, now);
            }
        }
        let left = self.sequences.iter().filter(|s| s.ending.is_none());
        let left: Vec<u64> = left.map(|s| s.id).collect();
        if !left.is_empty() && !self.shared.config.instant {
            self.shared.driver.abort(left);
        }
        let served = self.served(now);
        self.shared.metrics.count(&served, &self.sequences);
        self.shared.served.add(served);
    }
}

impl EventStream {
    /// Waits for the first event. The OpenAI endpoints send their head only with it (`/generate` sends it
    /// at once, before the request is scheduled): seen in every recording.
    ///
    /// # Errors
    /// [`EngineStopped`] when the server shuts down meanwhile.
    pub(super) async fn opened(mut self) -> Result<EventStream, EngineStopped> {
        poll_fn(|cx| self.poll_ready(cx)).await?;
        Ok(self)
    }

    /// Waits until an event is ready to be handed out, or the stream has ended.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EngineStopped>> {
        while self.ready.is_empty() && !self.ended {
            match ready!(self.reply.poll_next(cx))? {
                Some(index) => self.tell(index),
                None => self.tell_end(),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Renders what sequence `index` has to tell.
    fn tell(&mut self, index: usize) {
        self.spoke = index;
        let Reply {
            shared,
            call,
            receipt,
            sequences,
            ..
        } = &mut self.reply;
        let sequence = &mut sequences[index];
        if call.endpoint == Endpoint::Generate {
            let now = shared.clock.now();
            shared
                .wire
                .generate_event(&mut self.buffer, call, receipt, sequence, now);
            self.ready.push_back(self.buffer.split().freeze());
        } else {
            let now = shared.clock.now();
            sequence.moments.first_sent.get_or_insert(now);
            let ready = &mut self.ready;
            let mut send = |event| ready.push_back(event);
            shared
                .wire
                .openai_chunks(call, receipt, sequence, &mut send);
        }
    }

    /// Renders what comes after the last token of all.
    fn tell_end(&mut self) {
        let Reply {
            shared,
            call,
            receipt,
            sequences,
            ..
        } = &self.reply;
        let ready = &mut self.ready;
        if call.endpoint != Endpoint::Generate {
            let mut send = |event| ready.push_back(event);
            let last = &sequences[self.spoke];
            shared
                .wire
                .openai_tail(call, receipt, sequences, last, &mut send);
        }
        ready.push_back(Bytes::from_static(DONE.as_bytes()));
        self.ended = true;
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = EngineStopped;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EngineStopped>>> {
        if let Err(stopped) = ready!(self.poll_ready(cx)) {
            return Poll::Ready(Some(Err(stopped)));
        }
        let event = self.ready.pop_front();
        self.reply.complete |= self.ended && self.ready.is_empty();
        Poll::Ready(event.map(|event| Ok(Frame::data(event))))
    }
}

/// Whole bodies do not fail; this puts them beside streams, which do.
pub(super) fn never(never: Infallible) -> EngineStopped {
    match never {}
}
