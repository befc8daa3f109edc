//! What of a request was not measured, why, and what would measure it.

use super::cell::{Value, cells};
use crate::names::names;

names! {
    /// Something of a request that was not measured, so that stages are joined; for the engine's moments, why some or all are
    /// unknown. The docs show the comment of each.
    pub enum Unseen {
        /// the router's part was not measured: no worker hop (if there is no router: `--upstream-kind server`, which also names the server and relates its clock)
        Router = "router",
        /// it runs without `--enable-metrics`
        MetricsOff = "engine_metrics_off",
        /// its SGLang is older than 0.5.5
        TooOld = "engine_too_old",
        /// it reports only some of its times
        Part = "engine_part",
        /// it took the request out of the batch again before its first event, so its first and later queueing cannot be separated
        Retracted = "engine_retracted",
        /// a streamed answer of this API carries no times
        Stream = "engine_stream",
        /// the request did not ask for its times
        ChatReply = "engine_chat_reply",
        /// a reply of this API carries no times
        Reply = "engine_reply",
        /// prefill and decode are two servers, whose answers do not tell their waits apart
        Pair = "engine_pair",
        /// its trace or log has them, which go to the proxy after the answer
        InProxy = "engine_in_proxy",
        /// its trace or log had only some of its times
        Joined = "engine_joined",
        /// the body is encoded, or neither events nor JSON
        Hidden = "engine_hidden",
        /// the answer had no `meta_info`
        NoMeta = "engine_no_meta_info",
        /// it reported impossible times, which are left out
        Impossible = "engine_impossible",
        /// the server's clock could not be compared with ours
        EngineClock = "engine_clock",
        /// the proxy's clock could not be compared with ours
        ProxyClock = "proxy_clock",
        /// the first token was not measured: not streamed, or no stream that can be read
        FirstToken = "first_token",
    }
}

/// A set of [`Unseen`], one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unseens(u32);

/// How to get the engine's times of responses that cannot carry them.
const ELSEWHERE: &str = "`queuescope proxy --engine-traces IP:PORT` with SGLang's `--enable-trace`, or `--engine-logs DIR`: docs/ENGINE.md";

impl Unseens {
    /// Returns why the engine's moments are unknown, if some are.
    pub fn engine(self) -> Option<Unseen> {
        self.iter().find(|one| one.is_engine())
    }

    /// Returns its elements.
    pub fn iter(self) -> impl Iterator<Item = Unseen> {
        let all = Unseen::ALL.into_iter();
        all.filter(move |one| self.0 >> *one as u32 & 1 == 1)
    }
}

impl FromIterator<Unseen> for Unseens {
    fn from_iter<I: IntoIterator<Item = Unseen>>(all: I) -> Unseens {
        Unseens(all.into_iter().fold(0, |bits, one| bits | 1 << one as u32))
    }
}

cells! {
    Unseens: Value::Text(names) => Some(names.split(';').filter_map(Unseen::named).collect()),
        |all| Value::Text(Vec::from_iter(all.iter().map(Unseen::name)).join(";").into());
}

impl Unseen {
    const fn is_engine(self) -> bool {
        !matches!(
            self,
            Unseen::Router | Unseen::EngineClock | Unseen::ProxyClock | Unseen::FirstToken
        )
    }

    /// Whether the engine's trace or log would provide its moments.
    pub fn is_elsewhere(self) -> bool {
        self == Unseen::ChatReply || self.remedy() == ELSEWHERE
    }

    /// Returns what would provide the engine's moments.
    const fn remedy(self) -> &'static str {
        match self {
            Unseen::MetricsOff => "start the server with `--enable-metrics`",
            Unseen::TooOld => "an SGLang of 0.5.5 or later, best 0.5.21",
            Unseen::ChatReply => {
                "`\"return_meta_info\": true` in the request and `--enable-metrics` at the server; or `--engine-traces`: docs/ENGINE.md"
            }
            Unseen::Stream | Unseen::Reply | Unseen::Part | Unseen::Pair | Unseen::Retracted => {
                ELSEWHERE
            }
            Unseen::InProxy => {
                "look at the proxy's rows or live page; the server must run with `--enable-trace --otlp-traces-endpoint HOST:PORT`"
            }
            Unseen::Joined => {
                "`queuescope_timing_missing_total` counts why; of an SGLang with `--tokenizer-worker-num` above 1 the log alone has \
                 them: `--engine-logs DIR`"
            }
            Unseen::Hidden => {
                "a server that answers with events or JSON, and clients that do not ask for an encoded answer"
            }
            Unseen::NoMeta => "an answer as SGLang writes it",
            Unseen::Impossible => "the column `inconsistency` names them",
            _ => "",
        }
    }

    /// Returns a sentence for people; of the engine's moments with a remedy.
    pub fn sentence(self) -> String {
        let (help, remedy) = (self.help(), self.remedy());
        match self.is_engine() {
            true => format!(
                "some stages in the server were not measured: {help} (to measure them: {remedy})"
            ),
            false => help.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::meta_info::Generation::*;
    use crate::request::response::Endpoint::{self, *};
    use crate::request::response::Unread;
    use crate::request::row::Row;
    use crate::request::sample::Sample;
    use crate::request::sequence::TimingSource;
    use crate::request::timeline::Moment;

    const PAIR: &[Moment] = &[Moment::QueueStart, Moment::QueueEnd];
    const FIRST: &[Moment] = &[Moment::ServerFirstToken];

    fn unseen(
        (endpoint, stream): (Endpoint, bool),
        without: &[Moment],
        change: impl Fn(&mut Row),
    ) -> Unseen {
        let sample = Sample::whole().without(without).with(|row| {
            row.endpoint = Some(endpoint);
            row.stream = Some(stream);
            row.timing_source = None;
            change(row);
        });
        Unseen::of_engine(&sample.row())
    }

    #[test]
    fn the_reason_for_unknown_moments_follows_from_sglang_and_the_request() {
        for (generation, stream, retractions, without, expected) in [
            (MetricsOff, true, 0, PAIR, Unseen::MetricsOff),
            (Before0_5_5, true, 0, PAIR, Unseen::TooOld),
            (From0_5_5, true, 0, FIRST, Unseen::Part),
            (Fork, true, 0, PAIR, Unseen::Part),
            // A reply, and a stream whose first event came after the retraction.
            (From0_5_21, false, 2, PAIR, Unseen::Retracted),
            (From0_5_21, true, 2, PAIR, Unseen::Retracted),
            (From0_5_21, true, 2, FIRST, Unseen::Part),
        ] {
            let found = unseen((Generate, stream), without, |row| {
                row.internal.generation = Some(generation);
                row.num_retractions = Some(retractions);
            });
            assert_eq!(found, expected, "{generation:?} {stream}");
        }
        let nothing: fn(&mut Row) = |_| ();
        // Whoever sends through a proxy that has the times need not be told how to get them.
        let in_proxy: fn(&mut Row) = |row| row.internal.front_joins_engine = true;
        let joined: fn(&mut Row) = |row| row.timing_source = Some(TimingSource::Log);
        let encoded: fn(&mut Row) = |row| row.unread = Some(Unread::Encoded);
        for (endpoint, stream, change, expected) in [
            (Generate, true, nothing, Unseen::NoMeta),
            (Generate, true, encoded, Unseen::Hidden),
            (Generate, true, in_proxy, Unseen::NoMeta),
            (Chat, true, nothing, Unseen::Stream),
            (Messages, true, nothing, Unseen::Stream),
            (Responses, true, nothing, Unseen::Stream),
            (Chat, true, in_proxy, Unseen::InProxy),
            (Chat, true, joined, Unseen::Joined),
            (Chat, false, nothing, Unseen::ChatReply),
            (Completions, false, nothing, Unseen::Reply),
        ] {
            let found = unseen((endpoint, stream), &[], change);
            assert_eq!(found, expected, "{endpoint:?} {stream}");
        }
    }

    #[test]
    fn each_reason_has_the_remedy_that_helps() {
        let proxy = "queuescope proxy --engine-traces IP:PORT` with SGLang's `--enable-trace`";
        // The text is shown on the live page and in the proxy's own report too: it must not say "not here".
        for (why, helps, not) in [
            (Unseen::MetricsOff, "--enable-metrics", "not here"),
            (Unseen::TooOld, "0.5.5 or later", "--enable-metrics"),
            (Unseen::Retracted, proxy, "0.5.21"),
            (Unseen::Part, "--engine-logs DIR", "0.5.21"),
            (Unseen::Stream, proxy, "not here"),
            (Unseen::Reply, "--engine-logs DIR", "--enable-metrics`"),
            (Unseen::ChatReply, "return_meta_info", "not here"),
        ] {
            let remedy = why.remedy();
            assert!(remedy.contains(helps) && !remedy.contains(not), "{remedy}");
        }
        assert!(!Unseen::Stream.remedy().contains("--enable-metrics`"));
    }
}
