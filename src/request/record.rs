//! One record per generated sequence: what is known of it and of its request, and what follows from that.

use std::borrow::Cow;

pub use super::outcome::Outcome;

use super::attempt::{Attempt, Failed, SpanId};
use super::endpoint::Endpoint;
use super::gaps::{GapCounts, GapFigures};
use super::generation::Generation;
use super::passage::Passage;
use super::response::Unread;
use super::sequence::{Sequence, Untold};
use super::timeline::{Period, Timeline};
use super::token_count::TokenCountSource;
use super::trace::TraceFacts;

/// A server that prefilled a request which another answered.
#[derive(Clone, Debug)]
pub struct PrefilledBy {
    /// The server, `host:port`; empty where nobody told.
    pub host: String,
    /// The name of the hop before it.
    pub worker: String,
}

/// What is known of a whole request, shared by its sequences.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The request id, the client's or ours.
    pub req_id: String,
    /// The server that served it, `host:port`.
    pub host: Option<String>,
    /// Who prefilled it, where that was another server.
    pub prefilled_by: Option<Box<PrefilledBy>>,
    /// By what number its two servers, and no other request's, know it; 0 is none.
    pub room: Option<u64>,
    /// Where it was sent.
    pub endpoint: Endpoint,
    /// The model the request named.
    pub model: Option<String>,
    /// What the headers say that label it: [`super::head::labels`].
    pub labels: Option<String>,
    /// Whether the request asked for a stream.
    pub stream: Option<bool>,
    /// Words of the prompt, split at white space.
    pub input_length: Option<u64>,
    /// The most tokens the request asked for.
    pub expected_output_length: Option<u64>,
    /// Samples per prompt the request asked for.
    pub n: u64,
    /// HTTP status of the response.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
    /// What happened, in a few words; empty when it went well.
    pub error: String,
    /// Words of the server's stand in `error`: they may quote the request.
    pub error_quotes_server: bool,
    /// The code that stands before them in `error`: the status, or one that the body named as such.
    pub error_code: Option<u64>,
    /// How many times the request was sent to a server: as worker hops saw it where any did, else our own
    /// sendings.
    pub attempts: u32,
    /// Those of the attempts that did not answer, in their order; at most [`super::attempt::MAX_FAILED`].
    pub failed: Vec<Failed>,
    /// The name of the worker hop that it came through.
    pub worker: Option<String>,
    /// The name of the observer's clock, which is that of its process.
    pub clock: Option<String>,
    /// The key of the engine's clock among the offsets of a proxy.
    pub engine_clock: Option<String>,
    /// The observer's own span: the parent that it sent upstream.
    pub span: Option<SpanId>,
    /// The span that the request came with.
    pub parent_span: Option<SpanId>,
    /// Whether the upstream connection had been used before.
    pub upstream_reused: Option<bool>,
    /// W3C trace id, 32 hex digits.
    pub trace_id: Option<String>,
    /// What only traces tell. The generator's own needs none of it.
    pub trace: TraceFacts,
    /// The response came to the end of its framing; `None` without a response.
    pub message_whole: Option<bool>,
    /// Its body showed the generation's end; `None` where it does not tell.
    pub generation_whole: Option<bool>,
    /// Why nobody knows what the body said.
    pub unread: Option<Unread>,
    /// Nanoseconds in which a write to the client was held up.
    pub client_stall_nanos: Option<i64>,
    /// Those of them that had passed when the last of the response was read: it can have come later by so much.
    pub stall_until_read_nanos: Option<i64>,
    /// Nanoseconds in which a proxy had the request and no upstream did; see the column.
    pub overhead_nanos: Option<i64>,
    /// Nanoseconds for which a proxy waited for the prompt before it chose an upstream; `None` where it did not ask for it.
    pub prompt_wait_nanos: Option<i64>,
    /// When the body of the response passed the observer, where that is a front.
    pub passage: Passage,
    /// When it passed the worker hop.
    pub worker_passage: Passage,
    /// What servers tell by their traces or logs goes into the front's rows, not into this one.
    pub front_joins_engine: bool,
    /// It had more sequences than are recorded ([`super::response::MAX_SEQUENCES`]).
    pub untold_sequences: bool,
    /// `usage.prompt_tokens` of the whole request.
    pub usage_prompt_tokens: Option<u64>,
    /// `usage.completion_tokens` of the whole request.
    pub usage_completion_tokens: Option<u64>,
}

/// One row: a generated sequence with all its moments.
#[derive(Clone, Debug)]
pub struct Record {
    /// The request's part.
    pub facts: Facts,
    /// The sequence's part.
    pub sequence: Sequence,
    /// How many sequences the request has.
    pub sequences: u32,
    /// The moments.
    pub timeline: Timeline,
}

impl Facts {
    /// What happened, without words of the server's.
    pub fn own_error(&self) -> Cow<'_, str> {
        own_error(&self.error, self.error_quotes_server, self.error_code)
    }

    /// What is known of a request before any of it has been read.
    pub fn new(endpoint: Endpoint, req_id: String) -> Facts {
        Facts {
            req_id,
            endpoint,
            n: 1,
            ..Facts::default()
        }
    }
}

impl Record {
    /// Whether the request went well.
    pub fn is_ok(&self) -> bool {
        self.facts.outcome == Outcome::Ok
    }

    /// Takes the id of the row: the request's, with `#index` when it has several sequences.
    pub(super) fn take_row_id(&mut self) -> String {
        match self.sequences {
            0 | 1 => std::mem::take(&mut self.facts.req_id),
            _ => format!("{}#{}", self.facts.req_id, self.sequence.index),
        }
    }

    /// What its row's `inconsistency` names beside what cannot be.
    pub(super) fn noted(&self) -> Vec<String> {
        let differing = self.sequence.differing.iter();
        let differing = differing.map(|(moment, by)| format!("{}!={}", moment.name(), by.name()));
        let untold = self.facts.untold_sequences && self.sequence.index == 0;
        let untold = untold.then(|| "sequences_not_recorded".to_owned());
        differing.chain(untold).collect()
    }

    /// Whether this row stands for its prompt in sums: the samples of one prompt share its tokens.
    pub fn is_first_of_prompt(&self) -> bool {
        u64::from(self.sequence.index).is_multiple_of(self.facts.n.max(1))
    }

    /// Prompt tokens: `meta_info`, else `usage`.
    pub fn prompt_tokens(&self) -> Option<u64> {
        self.sequence
            .prompt_tokens
            .or(self.facts.usage_prompt_tokens)
    }

    /// Generated tokens: `meta_info`, else `usage`, which (unless it counts each sequence) speaks of the whole
    /// request and so counts only where there is one sequence.
    pub fn output_tokens(&self) -> Option<u64> {
        let (sequence, usage) = (&self.sequence, self.usage_tokens());
        TokenCountSource::most(sequence.token_source, sequence.output_tokens, usage)
    }

    /// Where [`Record::output_tokens`] came from.
    pub fn token_source(&self) -> Option<TokenCountSource> {
        let usage = || self.usage_tokens().map(|_| TokenCountSource::Usage);
        self.sequence.token_source.or_else(usage)
    }

    fn usage_tokens(&self) -> Option<u64> {
        let usage = self.facts.usage_completion_tokens;
        usage.filter(|_| self.sequences == 1)
    }

    /// Gaps between tokens: where each event told how many it brought, or where there were as many events as tokens.
    pub fn itl(&self) -> GapFigures {
        let sequence = &self.sequence;
        // By `usage` of the whole request, or by the engine's trace or log: none of them an event's own count.
        let is_of_all = sequence.output_tokens.is_none()
            || sequence
                .token_source
                .is_some_and(TokenCountSource::is_told_later);
        if self.output_tokens() == Some(sequence.token_events) && is_of_all {
            return sequence.chunk_gaps;
        }
        sequence.token_gaps
    }

    /// Nanoseconds in the server queue; of prefill and decode on two servers, of all three waits.
    pub fn pure_queue(&self) -> Option<i64> {
        let waited = self.timeline.nanos(Period::PURE_QUEUE);
        // What decode alone tells is of its own wait.
        let told = || {
            self.sequence
                .queue_nanos
                .filter(|_| self.timeline.prefill().is_none())
        };
        waited.or_else(told)
    }

    /// Time per output token after those of the first event, without the client's stalls, nanoseconds; `None` where nobody
    /// told how many there were, and of an answer in one event.
    pub fn tpot(&self) -> Option<i64> {
        if self.sequence.token_events < 2 {
            return None;
        }
        let later = later_tokens(self.output_tokens()?, self.sequence.first_event_tokens);
        let nanos = self.timeline.nanos(Period::TOKENS)?;
        let nanos = nanos.checked_sub(self.sequence.stall_nanos)?;
        nanos.checked_div(i64::try_from(later).ok()?)
    }
}

/// SGLang's own stamps of one moment differ by up to 0.24 µs between events (0.5.23).
pub const TOLERANCE_NANOS: i64 = 1_000;

/// What no column shows: known in the process that saw the request, and not of rows that were read.
#[derive(Clone, Debug, Default)]
pub struct More {
    /// Words of the server's stand in `error`: they may quote the request.
    pub error_quotes_server: bool,
    /// The code that stands before them.
    pub error_code: Option<u64>,
    /// The SGLang that its last `meta_info` is of.
    pub generation: Option<Generation>,
    /// Why the engine's trace or log brought nothing, where it was asked.
    pub untold: Option<Untold>,
    /// What it tells by those goes into the front's row.
    pub front_joins_engine: bool,
    /// Who prefilled it, where that was another server.
    pub prefilled_by: Option<Box<PrefilledBy>>,
    /// The gaps of `itl_mean` by their length, where all are known.
    pub gaps: Option<GapCounts>,
    /// What only traces tell.
    pub trace: TraceFacts,
}

impl PrefilledBy {
    /// The server of this attempt.
    pub fn of(leg: &Attempt) -> Box<PrefilledBy> {
        Box::new(PrefilledBy {
            host: leg.host.clone(),
            worker: leg.worker.clone(),
        })
    }
}

impl More {
    pub(super) fn of(record: &mut Record) -> More {
        let has_gaps = record.itl().mean_nanos.is_some();
        let (facts, sequence) = (&mut record.facts, &mut record.sequence);
        More {
            error_quotes_server: facts.error_quotes_server,
            error_code: facts.error_code,
            generation: sequence.generation,
            untold: sequence.untold,
            front_joins_engine: facts.front_joins_engine,
            prefilled_by: facts.prefilled_by.take(),
            gaps: sequence.gap_counts.take().filter(|_| has_gaps),
            trace: std::mem::take(&mut facts.trace),
        }
    }
}

/// Tokens after those that the first event brought. Where `usage` alone tells their number, that event is taken to have brought
/// one, as the engine sends it.
pub(super) fn later_tokens(all: u64, first: Option<u64>) -> u64 {
    all.saturating_sub(first.unwrap_or(1))
}

/// What happened, without words of the server's, of an error that quotes it.
pub fn own_error(error: &str, quotes_server: bool, code: Option<u64>) -> Cow<'_, str> {
    if !quotes_server {
        return Cow::Borrowed(error);
    }
    let what = "the server's message is in the records file only, as it may quote the prompt";
    // Not the first word of `error`, which may be one of the prompt's.
    Cow::Owned(code.map_or_else(|| what.into(), |code| format!("{code}; {what}")))
}
