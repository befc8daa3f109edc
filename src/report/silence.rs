//! Why the engine's moments of a request are unknown, and what to switch on.

use crate::request::endpoint::Endpoint;
use crate::request::record::Record;
use crate::request::sequence::TimingSource;

/// Why some or all of the engine's moments are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Silence {
    /// The server runs without its metrics.
    MetricsOff,
    /// Its SGLang tells none, whatever is switched on.
    TooOld,
    /// Its SGLang tells some and not these.
    Part,
    /// Taken out of the batch again, in a reply that is no stream.
    Retracted,
    /// A streamed answer of an API that has no place for them.
    Stream,
    /// A reply of chat, which has them for who asks.
    ChatReply,
    /// A reply of another API, which never has.
    Reply,
    /// The engine's trace or log was joined, and had not all.
    Joined,
    /// A content coding hides the body.
    Hidden,
    /// The body had no `meta_info`.
    NoMeta,
}

/// How to get them for answers that cannot carry them.
const ELSEWHERE: &str = "start SGLang with `--enable-trace --otlp-traces-endpoint HOST:PORT` and queuescope with `--engine-traces \
    IP:PORT` (or with `--export-metrics-to-file` and `--engine-logs DIR`)";

impl Silence {
    /// Why it is so for a row that went well.
    pub fn of(record: &Record) -> Silence {
        let (facts, sequence) = (&record.facts, &record.sequence);
        let streamed = facts.stream == Some(true);
        if facts.unread.is_some() {
            return Silence::Hidden;
        }
        if let Some(TimingSource::Trace | TimingSource::Log) = sequence.timing_source {
            return Silence::Joined;
        }
        match (sequence.generation, facts.endpoint) {
            (Some(generation), _) if generation.is_too_old() => Silence::TooOld,
            (Some(generation), _) if generation.metrics_on() == Some(false) => Silence::MetricsOff,
            (Some(_), _) if sequence.num_retractions.unwrap_or(0) > 0 && !streamed => {
                Silence::Retracted
            }
            (Some(_), _) => Silence::Part,
            (None, Endpoint::Generate) => Silence::NoMeta,
            (None, _) if streamed => Silence::Stream,
            (None, Endpoint::Chat) => Silence::ChatReply,
            (None, _) => Silence::Reply,
        }
    }

    /// Short name, as in the summary.
    pub const fn name(self) -> &'static str {
        match self {
            Silence::MetricsOff => "engine_metrics_off",
            Silence::TooOld => "engine_too_old",
            Silence::Part => "engine_part",
            Silence::Retracted => "engine_retracted",
            Silence::Stream => "engine_stream",
            Silence::ChatReply => "engine_chat_reply",
            Silence::Reply => "engine_reply",
            Silence::Joined => "engine_joined",
            Silence::Hidden => "engine_hidden",
            Silence::NoMeta => "engine_no_meta_info",
        }
    }

    /// Why, in a few words.
    pub const fn why(self) -> &'static str {
        match self {
            Silence::MetricsOff => "it runs without `--enable-metrics`",
            Silence::TooOld => "its SGLang is older than 0.5.5",
            Silence::Part => "its SGLang tells only some of its times",
            Silence::Retracted => {
                "it took the request out of the batch again, and a reply that is no stream cannot tell its first \
                queueing from later ones"
            }
            Silence::Stream => "a streamed answer of this API carries no times",
            Silence::ChatReply => "the request did not ask for its times",
            Silence::Reply => "a reply of this API carries no times",
            Silence::Joined => "its trace or log had only some of its times",
            Silence::Hidden => "the body is encoded or no JSON",
            Silence::NoMeta => "the answer had no `meta_info`",
        }
    }

    /// What would show them.
    pub fn remedy(self) -> String {
        match self {
            Silence::MetricsOff => "start the server with `--enable-metrics`".to_owned(),
            Silence::TooOld => "an SGLang of 0.5.5 or later, best 0.5.21".to_owned(),
            Silence::Part => "an SGLang of 0.5.21 or later".to_owned(),
            Silence::Retracted => "`\"stream\": true` in the request".to_owned(),
            Silence::Stream | Silence::Reply => ELSEWHERE.to_owned(),
            Silence::ChatReply => format!(
                "`\"return_meta_info\": true` in the request and `--enable-metrics` at the server; or {ELSEWHERE}"
            ),
            Silence::Joined => {
                "nothing more is to be had of it; `queuescope_timing_missing_total` counts why"
                    .to_owned()
            }
            Silence::Hidden => "clients that do not ask for an encoded answer".to_owned(),
            Silence::NoMeta => "an answer as SGLang writes it".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::Sample;
    use crate::request::generation::Generation;
    use crate::request::response::Unread;

    #[test]
    fn each_case_has_its_own_switch() {
        let of = |endpoint, stream, change: fn(&mut Record)| {
            let mut record = Sample::whole().record();
            record.facts.endpoint = endpoint;
            record.facts.stream = Some(stream);
            record.sequence.generation = None;
            record.sequence.timing_source = None;
            change(&mut record);
            Silence::of(&record)
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
        let retracted = |r: &mut Record| {
            r.sequence.generation = Some(Generation::From0_5_22);
            r.sequence.num_retractions = Some(2);
        };
        assert_eq!(of(Endpoint::Generate, false, retracted), Silence::Retracted);
        assert_eq!(of(Endpoint::Generate, true, retracted), Silence::Part);
        for endpoint in [Endpoint::Chat, Endpoint::Messages, Endpoint::Responses] {
            let stream = of(endpoint, true, |_| ());
            assert_eq!(stream, Silence::Stream);
            assert!(stream.remedy().contains("--engine-traces IP:PORT"));
            assert!(!stream.remedy().contains("--enable-metrics`"));
        }
        let reply = of(Endpoint::Chat, false, |_| ());
        assert!(reply.remedy().contains("return_meta_info"));
        let joined = |r: &mut Record| r.sequence.timing_source = Some(TimingSource::Log);
        assert_eq!(of(Endpoint::Chat, true, joined), Silence::Joined);
        assert_eq!(of(Endpoint::Completions, false, |_| ()), Silence::Reply);
    }
}
