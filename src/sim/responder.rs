//! The response to a generation request: turns the engine's updates into the bytes of a stream or of one body.
//!
//! When the client leaves, hyper drops the unfinished reply, which then aborts its sequences. However a reply ends, it is
//! recorded once in [`Shared::served`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http::HeaderMap;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock::Stamp;
use crate::request::Endpoint;

use super::config::Mode;
use super::driver::{Submission, Update};
use super::engine::{EventKind, Prompt, Request};
use super::request_body::GenerationRequest;
use super::response_body::{
    DONE, generate_event, generate_reply, openai_chunks, openai_reply, openai_tail,
};
use super::sequence::Sequence;
use super::{Accepted, Served, Shared, handover, meta_info, spans};

/// The most entries of [`Shared::served`]; the oldest are dropped.
const MAX_SERVED: usize = 100_000;

/// A response in progress.
#[derive(Debug)]
pub(super) struct Responder {
    accepted: Accepted,
    updates: UnboundedReceiver<Update>,
    /// For updates that `handover` sends.
    update_sender: UnboundedSender<Update>,
    /// The number of sequences that have not ended.
    open: usize,
    /// Rendered events that are not sent yet. Each becomes a frame, and so an HTTP chunk, of its own.
    ready: VecDeque<Bytes>,
    /// The index of the sequence whose event was rendered last.
    last_index: usize,
    /// Whether everything has been rendered.
    is_complete: bool,
}

impl Responder {
    /// Submits the request to the engine; on a prefill server, when the decode server has reserved memory.
    pub(super) fn start(
        shared: Arc<Shared>,
        mut request: GenerationRequest,
        headers: HeaderMap,
        received: Stamp,
    ) -> Responder {
        let profile = &shared.config.profile;
        let dispatched = received.plus_seconds(profile.tokenize_s(request.prompt_tokens));
        let is_prefill = shared.mode() == Mode::Prefill;
        let (update_sender, updates) = unbounded_channel();
        let open = request.sequences.len();
        let first = shared.next_id.fetch_add(open as u64, Ordering::Relaxed);
        let mut submissions = Vec::with_capacity(open);
        for (id, sequence) in (first..).zip(&mut request.sequences) {
            sequence.id = id;
            let submission = Submission {
                request: Request {
                    id,
                    prompt: Prompt::Tokens(sequence.prompt.clone()),
                    // A prefill server generates the first token only.
                    output_tokens: if is_prefill { 1 } else { sequence.max_tokens },
                },
                due: dispatched,
                rid: sequence.rid.clone(),
                index: sequence.index,
                updates: update_sender.clone(),
            };
            match &sequence.bootstrap {
                Some(bootstrap) if is_prefill => {
                    let from = dispatched.plus_nanos(handover::PREPARE_NANOS);
                    sequence.moments.bootstrap_start = Some(from);
                    let prefill = handover::prefill(shared.clone(), submission, bootstrap.room);
                    tokio::spawn(prefill);
                }
                _ => submissions.push(submission),
            }
        }
        shared.driver.submit(submissions);
        Responder {
            accepted: Accepted {
                shared,
                request,
                headers,
                received,
                dispatched,
            },
            updates,
            update_sender,
            open,
            ready: VecDeque::new(),
            last_index: 0,
            is_complete: false,
        }
    }

    /// Applies updates until one that an event reports to the client; returns its sequence's index. `None` when all sequences
    /// have ended.
    async fn next(&mut self) -> Option<usize> {
        while self.open > 0 {
            // The channel does not close: we hold a sender ourselves.
            let update = self.updates.recv().await?;
            if self.apply(&update, true) {
                return Some(update.index);
            }
        }
        None
    }

    /// Applies an update to its sequence; when that ends, sends its spans and, if the client is still there, writes its log line.
    /// Without a client no prefill server is told of reserved memory: the request is about to be aborted.
    /// Returns whether an event reports the update to the client.
    fn apply(&mut self, update: &Update, has_client: bool) -> bool {
        let accepted = &mut self.accepted;
        let is_reported_at_end = accepted.is_reported_at_end();
        let sequence = &mut accepted.request.sequences[update.index];
        if let (true, EventKind::Reserved, Some(bootstrap)) =
            (has_client, update.kind, &sequence.bootstrap)
        {
            let reserved = (sequence.id, *update);
            let (shared, sender) = (accepted.shared.clone(), self.update_sender.clone());
            let bootstrap = bootstrap.clone();
            tokio::spawn(handover::receive(shared, bootstrap, reserved, sender));
        }
        let was_open = sequence.ending.is_none();
        let is_reported = sequence.apply(update);
        if is_reported_at_end && sequence.ending.is_some() {
            let moments = &mut sequence.moments;
            moments.first_token = moments.first_token.and(moments.finish);
        }
        if was_open && sequence.ending.is_some() {
            self.open -= 1;
            let sequence = &accepted.request.sequences[update.index];
            spans::send(accepted, sequence, update.reported_at);
            if has_client {
                append_line(accepted, sequence);
            }
        }
        is_reported
    }

    /// Waits for the end and returns the whole body, or `None` if the queue was full.
    pub(super) async fn into_body(mut self) -> Option<Bytes> {
        while let Some(index) = self.next().await {
            if self.accepted.request.sequences[index].ending == Some(EventKind::Rejected) {
                return None;
            }
        }
        let mut out = BytesMut::new();
        let now = self.accepted.shared.clock.now();
        match self.accepted.request.endpoint {
            Endpoint::Generate => generate_reply(&mut out, &self.accepted, now),
            _ => openai_reply(&mut out, &self.accepted, now),
        }
        self.is_complete = true;
        Some(out.freeze())
    }

    /// Returns the frames of a stream.
    pub(super) fn into_frames(self) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
        stream::unfold(self, |mut reply| async move {
            reply.fill().await;
            let event = reply.ready.pop_front()?;
            Some((Ok(Frame::data(event)), reply))
        })
    }

    /// Waits until an event is ready, or the stream has ended.
    pub(super) async fn fill(&mut self) {
        while self.ready.is_empty() && !self.is_complete {
            match self.next().await {
                Some(index) => self.render(index),
                None => self.render_end(),
            }
        }
    }

    /// Renders the newest event of a sequence.
    fn render(&mut self, index: usize) {
        self.last_index = index;
        let accepted = &mut self.accepted;
        let now = accepted.shared.clock.now();
        let sequence = &accepted.request.sequences[index];
        if accepted.request.endpoint == Endpoint::Generate {
            self.ready
                .push_back(generate_event(accepted, sequence, now));
        } else {
            openai_chunks(accepted, sequence, &mut self.ready);
        }
        let sequence = &mut accepted.request.sequences[index];
        sequence.moments.first_sent.get_or_insert(now);
        sequence.streamed = sequence.generated();
    }

    /// Renders the events after the last token of all.
    fn render_end(&mut self) {
        let accepted = &self.accepted;
        if accepted.request.endpoint != Endpoint::Generate {
            let last = &accepted.request.sequences[self.last_index];
            openai_tail(accepted, last, &mut self.ready);
        }
        self.ready.push_back(Bytes::from_static(DONE));
        self.is_complete = true;
    }

    fn is_finished(&self) -> bool {
        let mut sequences = self.accepted.request.sequences.iter();
        let is_sent = self.is_complete && self.ready.is_empty();
        is_sent && sequences.all(|one| matches!(one.ending, Some(EventKind::Token { .. })))
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        // Updates that arrived after the client left still belong in the record.
        while let Ok(update) = self.updates.try_recv() {
            self.apply(&update, false);
        }
        let accepted = &self.accepted;
        let shared = &accepted.shared;
        let now = shared.clock.now();
        let sequences = accepted.request.sequences.iter();
        for sequence in sequences.filter(|one| one.ending.is_none()) {
            spans::send(accepted, sequence, now);
            shared.driver.abort(sequence.id);
        }
        let is_finished = self.is_finished();
        if is_finished {
            shared.metrics.count(&accepted.request, accepted.received);
        }
        let mut moments = accepted.request.sequences[0].moments;
        moments.finish.get_or_insert(now);
        let header = |name| accepted.header(name).map(str::to_owned);
        let mut all = shared.served.lock();
        if all.len() == MAX_SERVED {
            all.pop_front();
        }
        all.push_back(Served {
            x_request_id: header("x-request-id"),
            traceparent: header("traceparent"),
            received: accepted.received,
            moments,
            is_finished,
        });
    }
}

/// Appends the line of a sequence that has ended to the request log of `--export-metrics-to-file`, if that is enabled: to the file of
/// the hour (in UTC; SGLang uses the machine's time zone). A line that cannot be written is lost and reported in our own log.
fn append_line(accepted: &Accepted, sequence: &Sequence) {
    let Some(folder) = &accepted.shared.request_log else {
        return;
    };
    let now = accepted.shared.clock.now();
    let hour = now.utc().strftime("%Y%m%d_%H");
    let path = folder.join(format!("sglang-request-metrics-{hour}.log"));
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let line = log_line(accepted, sequence, now);
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        let folder = folder.display();
        log::error!("--export-metrics-to-file-dir {folder}: {error}; a line is lost");
    }
}

/// Renders the line: of SGLang's request parameters only the id, `stream`, the room and the trace; then `meta_info`.
fn log_line(accepted: &Accepted, sequence: &Sequence, now: Stamp) -> String {
    let headers = ["traceparent", "tracestate"].into_iter();
    let headers = headers.filter_map(|name| Some((name.to_owned(), accepted.header(name)?.into())));
    let mut parameters = json!({
        "rid": *sequence.rid,
        "stream": accepted.request.stream,
        "external_trace_header": Value::Object(headers.collect()),
    });
    if let Some(bootstrap) = &sequence.bootstrap {
        parameters["bootstrap_host"] = bootstrap.host.as_str().into();
        parameters["bootstrap_port"] = bootstrap.port.into();
        parameters["bootstrap_room"] = bootstrap.room.into();
    }
    let mut out = BytesMut::new();
    meta_info::write(&mut out, accepted, sequence, now);
    let members = String::from_utf8_lossy(&out);
    let members = members.strip_prefix('{').unwrap_or_default();
    let parameters = Value::from(parameters.to_string());
    format!("{{\"request_parameters\":{parameters},{members}\n")
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;

    use super::*;
    use crate::clock::Clock;
    use crate::sim::Sim;
    use crate::sim::config::Config;
    use crate::sim::engine::Profile;

    #[tokio::test]
    async fn no_prefill_server_is_told_of_memory_for_a_client_that_has_left() {
        let mut config = Config {
            port: 0,
            profile: Profile::bare(),
            ..Config::default()
        };
        config.disaggregation.disaggregation_mode = Mode::Decode;
        let sim = Sim::start(config, Clock::system()).unwrap();
        let shared = sim.shared.clone();
        let body = json!({
            "text": "a", "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1,
        });
        let body = body.to_string();
        let request = GenerationRequest::parse(Endpoint::Generate, body.as_bytes(), &shared.config);
        let now = shared.clock.now();
        let reply = Responder::start(shared, request.unwrap(), HeaderMap::new(), now);
        assert_eq!(reply.updates.len(), 2, "queued and reserved");
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        drop(reply);
        assert_eq!(tasks(), before);
    }
}
