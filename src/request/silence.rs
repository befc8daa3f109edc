//! Why the engine's moments of a request are unknown, and what to switch on.

use crate::request::endpoint::Endpoint;
use crate::request::generation::Generation;
use crate::request::names::names;
use crate::request::row::Row;
use crate::request::sequence::{TimingSource, Untold};
use crate::request::timeline::Moment;
use crate::request::unseen::Unseens;

names! {
    /// Why some or all of the engine's moments are unknown.
    pub enum Silence {
        /// The server runs without its metrics.
        MetricsOff = "engine_metrics_off",
        /// Its SGLang tells none, whatever is switched on.
        TooOld = "engine_too_old",
        /// Its SGLang is an old one that tells some and not these.
        Part = "engine_part",
        /// SGLang 0.5.5 tells a stream's first token only with its metrics on.
        FirstToken = "engine_first_token",
        /// SGLang 0.5.5 and 0.5.6 tell the first token of streams only.
        FirstTokenOfReply = "engine_first_token_of_reply",
        /// Its SGLang tells them all, and did not here.
        Incomplete = "engine_incomplete",
        /// Taken out of the batch again before the first event, which is all of a reply that is no stream.
        Retracted = "engine_retracted",
        /// A streamed answer of an API that has no place for them.
        Stream = "engine_stream",
        /// A reply of chat, which has them for who asks.
        ChatReply = "engine_chat_reply",
        /// A reply of another API, which never has.
        Reply = "engine_reply",
        /// The engine's trace or log was joined, and had not all.
        Joined = "engine_joined",
        /// A content coding hides the body.
        Hidden = "engine_hidden",
        /// The body had no `meta_info`.
        NoMeta = "engine_no_meta_info",
        /// What was told of them cannot be.
        Impossible = "engine_impossible",
    }
}

/// How to get them for answers that cannot carry them.
const ELSEWHERE: &str = "start SGLang with `--enable-trace --otlp-traces-endpoint HOST:PORT` and send through `queuescope proxy \
    --engine-traces IP:PORT` (or with `--export-metrics-to-file` and `--engine-logs DIR`); the times come after the answer, into the \
    proxy's rows and live page";

impl Silence {
    /// Why it is so for a row that went well.
    pub fn of(row: &Row) -> Silence {
        if let Some(told) = row.unseen.and_then(Unseens::engine) {
            return told;
        }
        let streamed = row.stream == Some(true);
        if row.more.untold == Some(Untold::Impossible) {
            return Silence::Impossible;
        }
        if row.unread.is_some() {
            return Silence::Hidden;
        }
        if let Some(TimingSource::Trace | TimingSource::Log) = row.timing_source {
            return Silence::Joined;
        }
        match (row.more.generation, row.endpoint()) {
            (Some(generation), _) if generation.is_too_old() => Silence::TooOld,
            (Some(generation), _) if generation.metrics_on() == Some(false) => Silence::MetricsOff,
            (Some(generation), _) => Silence::of_part(row, generation, streamed),
            (None, Endpoint::Generate) => Silence::NoMeta,
            (None, _) if streamed => Silence::Stream,
            (None, Endpoint::Chat) => Silence::ChatReply,
            (None, _) => Silence::Reply,
        }
    }

    /// Why not all is told by an SGLang that tells some.
    fn of_part(row: &Row, generation: Generation, streamed: bool) -> Silence {
        let lacks = |moment| row.timeline.raw(moment).is_none();
        let is_retracted = row.num_retractions.unwrap_or(0) > 0;
        match generation {
            _ if is_retracted && lacks(Moment::QueueStart) => Silence::Retracted,
            Generation::V0_5_5 if streamed && lacks(Moment::ServerFirstToken) => {
                Silence::FirstToken
            }
            Generation::V0_5_5 | Generation::V0_5_6
                if !streamed && lacks(Moment::ServerFirstToken) =>
            {
                Silence::FirstTokenOfReply
            }
            Generation::V0_5_21 | Generation::From0_5_22 => Silence::Incomplete,
            _ => Silence::Part,
        }
    }

    /// Why, in a few words.
    pub const fn why(self) -> &'static str {
        match self {
            Silence::MetricsOff => "it runs without `--enable-metrics`",
            Silence::TooOld => "its SGLang is older than 0.5.5",
            Silence::Part => "its SGLang tells only some of its times",
            Silence::FirstToken => {
                "its SGLang, 0.5.5, tells a stream's first token only with metrics on"
            }
            Silence::FirstTokenOfReply => "its SGLang tells the first token of streams only",
            Silence::Incomplete => "it left some of its times out",
            Silence::Retracted => {
                "it took the request out of the batch again before its first event, which cannot tell the first \
                queueing from later ones"
            }
            Silence::Stream => "a streamed answer of this API carries no times",
            Silence::ChatReply => "the request did not ask for its times",
            Silence::Reply => "a reply of this API carries no times",
            Silence::Joined => "its trace or log had only some of its times",
            Silence::Hidden => "the body is encoded or no JSON",
            Silence::NoMeta => "the answer had no `meta_info`",
            Silence::Impossible => "it told times that cannot be, which are left out",
        }
    }

    /// What would show them.
    pub fn remedy(self) -> String {
        match self {
            Silence::MetricsOff | Silence::FirstToken => {
                "start the server with `--enable-metrics`".to_owned()
            }
            Silence::TooOld => "an SGLang of 0.5.5 or later, best 0.5.21".to_owned(),
            Silence::Part => "an SGLang of 0.5.21 or later".to_owned(),
            Silence::FirstTokenOfReply => {
                "`\"stream\": true` in the request (0.5.5: and `--enable-metrics` at the server)"
                    .to_owned()
            }
            Silence::Retracted => format!(
                "a first event that comes before that: `\"stream\": true` in the request and a small `--stream-interval` at the \
                server; or {ELSEWHERE}"
            ),
            Silence::Stream | Silence::Reply | Silence::Incomplete => ELSEWHERE.to_owned(),
            Silence::ChatReply => format!(
                "`\"return_meta_info\": true` in the request and `--enable-metrics` at the server; or {ELSEWHERE}"
            ),
            Silence::Joined => {
                "`queuescope_timing_missing_total` counts why; of an SGLang with `--tokenizer-worker-num` above 1 the log alone has \
                 them: `--engine-logs DIR`"
                    .to_owned()
            }
            Silence::Hidden => "clients that do not ask for an encoded answer".to_owned(),
            Silence::NoMeta => "an answer as SGLang writes it".to_owned(),
            Silence::Impossible => "the column `inconsistency` names them".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::record::Record;
    use crate::request::response::Unread;
    use crate::request::sample::{Sample, rows};

    #[test]
    fn each_case_has_its_own_switch() {
        let of = |endpoint, stream, change: fn(&mut Record)| {
            let mut record = Sample::whole().record();
            record.facts.endpoint = endpoint;
            record.facts.stream = Some(stream);
            record.sequence.generation = None;
            record.sequence.timing_source = None;
            change(&mut record);
            Silence::of(&rows(&[record])[0])
        };
        let generate = |change| of(Endpoint::Generate, true, change);
        let off = generate(|r| r.sequence.generation = Some(Generation::From0_5_12MetricsOff));
        assert_eq!(off, Silence::MetricsOff);
        assert!(off.remedy().contains("--enable-metrics"));
        let old = generate(|r| r.sequence.generation = Some(Generation::From0_4_6));
        assert_eq!(old, Silence::TooOld);
        assert!(!old.remedy().contains("--enable-metrics"));
        let part = generate(|r| r.sequence.generation = Some(Generation::V0_5_6));
        assert_eq!(part, Silence::Part);
        assert_eq!(generate(|_| ()), Silence::NoMeta);
        let hidden = generate(|r| r.facts.unread = Some(Unread::Encoded));
        assert_eq!(hidden, Silence::Hidden);
        for endpoint in [Endpoint::Chat, Endpoint::Messages, Endpoint::Responses] {
            let stream = of(endpoint, true, |_| ());
            assert_eq!(stream, Silence::Stream);
            assert!(
                stream
                    .remedy()
                    .contains("queuescope proxy --engine-traces IP:PORT")
            );
            assert!(!stream.remedy().contains("--enable-metrics`"));
            // It stands on the live page and in the proxy's own report too.
            assert!(!stream.remedy().contains("not here"));
        }
        let reply = of(Endpoint::Chat, false, |_| ());
        assert!(reply.remedy().contains("return_meta_info"));
        let joined = |r: &mut Record| r.sequence.timing_source = Some(TimingSource::Log);
        assert_eq!(of(Endpoint::Chat, true, joined), Silence::Joined);
        assert_eq!(of(Endpoint::Completions, false, |_| ()), Silence::Reply);
    }

    #[test]
    fn what_an_sglang_tells_in_part_has_a_remedy_of_its_own() {
        let of = |generation, stream, retractions, without: &[Moment]| {
            let sample = Sample::whole().without(without).with(|row| {
                row.facts.stream = Some(stream);
                row.sequence.generation = Some(generation);
                row.sequence.num_retractions = Some(retractions);
            });
            Silence::of(&sample.row())
        };
        let pair = &[Moment::QueueStart, Moment::QueueEnd];
        let first = &[Moment::ServerFirstToken];
        // A reply, and a stream whose first event came after the retraction.
        for stream in [false, true] {
            let retracted = of(Generation::From0_5_22, stream, 2, pair);
            assert_eq!(retracted, Silence::Retracted);
            assert!(retracted.remedy().contains("--stream-interval"));
            assert!(!retracted.remedy().contains("0.5.21"));
        }
        let has_pair = of(Generation::From0_5_22, true, 2, first);
        assert_eq!(has_pair, Silence::Incomplete);
        assert!(!has_pair.remedy().contains("0.5.21"));
        let no_metrics = of(Generation::V0_5_5, true, 0, first);
        assert_eq!(no_metrics, Silence::FirstToken);
        assert!(no_metrics.remedy().contains("--enable-metrics"));
        for generation in [Generation::V0_5_5, Generation::V0_5_6] {
            let reply = of(generation, false, 0, first);
            assert_eq!(reply, Silence::FirstTokenOfReply);
        }
        assert_eq!(of(Generation::V0_5_6, true, 0, &[]), Silence::Part);
        assert_eq!(of(Generation::Fork, true, 0, pair), Silence::Part);
    }
}
