//! The headers in which a hop tells the front, and the front its client, what they have stamped.
//!
//! Form: `key=value` pairs joined by `;`, stamps in epoch nanoseconds of the sender's clock, which
//! `clock` names (a name of its own for each process, so that equal names mean one clock):
//! `clock=4bf9;now=…;arrival=…;forwarded=…;host=127.0.0.1:30000`. Unknown keys are skipped, a value
//! that does not parse is as if absent.

use crate::clock::Stamp;

use super::attempt::{Failed, Hex, MAX_FAILED, SpanId};

/// Request header by which a client asks the front for [`FRONT_HEADER`] (value `1`).
pub const ASK_HEADER: &str = "x-queuescope-stamps";
/// Response header with the front's stamps, only for clients that asked.
pub const FRONT_HEADER: &str = "x-queuescope-stamps";
/// Response header with the hop's stamps; the front takes it off.
pub const HOP_HEADER: &str = "x-queuescope-hop";

/// What one process of ours stamped of a request, up to its sending of the response head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// Name of the process's clock.
    pub clock: String,
    /// The clock at the moment the header was written.
    pub now: Option<Stamp>,
    /// The request head was read.
    pub arrival: Option<Stamp>,
    /// The last byte of the request body was read.
    pub request_end: Option<Stamp>,
    /// The head was sent upstream.
    pub forwarded: Option<Stamp>,
    /// The server it was sent to, `host:port`.
    pub host: Option<String>,
    /// How many times it was sent upstream.
    pub attempts: Option<u32>,
    /// Its upstream is the server itself: no router stands between.
    pub is_direct: bool,
    /// What servers tell by their traces or logs goes into the sender's rows.
    pub joins_engine: bool,
    /// The hop's name.
    pub worker: Option<String>,
    /// The sender's own span: what it sent upstream as the parent.
    pub span: Option<SpanId>,
    /// By what number the servers of a pair know the request.
    pub room: Option<u64>,
    /// Earlier attempts at the same request that the sender saw fail.
    pub failed: Vec<Failed>,
    /// The hop's own stamps, passed on by the front.
    pub hop: Option<Box<Stamps>>,
}

impl Stamps {
    /// The header's value.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(256);
        self.render_into(&mut out, "");
        if let Some(hop) = &self.hop {
            hop.render_into(&mut out, "hop.");
        }
        out
    }

    /// Reads a header's value; pairs that do not parse are skipped. `None` when it names no clock, since
    /// stamps of an unknown clock say nothing.
    pub fn parse(value: &str) -> Option<Stamps> {
        let mut stamps = Stamps::default();
        let mut hop = Stamps::default();
        for (key, value) in value.split(';').filter_map(|pair| pair.split_once('=')) {
            match key.trim().strip_prefix("hop.") {
                Some(key) => hop.take(key, value.trim()),
                None => stamps.take(key.trim(), value.trim()),
            }
        }
        stamps.hop = (!hop.clock.is_empty()).then(|| Box::new(hop));
        (!stamps.clock.is_empty()).then_some(stamps)
    }

    /// The clock of the engine at `host`, as the sender of these stamps calls it. Two senders may mean different
    /// servers by one address, such as that of a server beside them.
    pub fn engine_clock(&self, host: &str) -> String {
        format!("{} {host}", self.clock)
    }

    fn render_into(&self, out: &mut String, prefix: &str) {
        let mut pair = |key, value: Option<&str>| {
            let Some(value) = value else { return };
            if !out.is_empty() {
                out.push(';');
            }
            out.push_str(prefix);
            out.push_str(key);
            out.push('=');
            out.push_str(value);
        };
        pair("clock", Some(&self.clock));
        for (key, number) in [
            ("now", self.now.map(Stamp::nanos)),
            ("arrival", self.arrival.map(Stamp::nanos)),
            ("request_end", self.request_end.map(Stamp::nanos)),
            ("forwarded", self.forwarded.map(Stamp::nanos)),
            ("attempts", self.attempts.map(i64::from)),
            ("direct", self.is_direct.then_some(1)),
            ("joins_engine", self.joins_engine.then_some(1)),
        ] {
            let mut digits = itoa::Buffer::new();
            pair(key, number.map(|number| digits.format(number)));
        }
        let mut digits = itoa::Buffer::new();
        pair("room", self.room.map(|room| digits.format(room)));
        pair("host", self.host.as_deref());
        pair("worker", self.worker.as_deref());
        pair("span", self.span.map(SpanId::hex).as_ref().map(Hex::text));
        for failed in self.failed.iter().take(MAX_FAILED) {
            pair("failed", Some(&failed.render()));
        }
    }

    fn take(&mut self, key: &str, value: &str) {
        let at = || value.parse().ok().and_then(told);
        match key {
            "clock" => self.clock = value.to_owned(),
            "now" => self.now = at(),
            "arrival" => self.arrival = at(),
            "request_end" => self.request_end = at(),
            "forwarded" => self.forwarded = at(),
            "attempts" => self.attempts = value.parse().ok(),
            "room" => self.room = value.parse().ok(),
            "direct" => self.is_direct = value == "1",
            "joins_engine" => self.joins_engine = value == "1",
            "host" if !value.is_empty() => self.host = Some(value.to_owned()),
            "worker" if !value.is_empty() => self.worker = Some(value.to_owned()),
            "span" => self.span = SpanId::parse(value),
            "failed" if self.failed.len() < MAX_FAILED => self.failed.extend(Failed::parse(value)),
            _ => {}
        }
    }
}

/// A stamp from elsewhere. What lies before 1970 or beyond 2116 is no stamp of a clock, and what is taken of
/// it would not fit into a number.
fn told(nanos: i64) -> Option<Stamp> {
    (0..1 << 62)
        .contains(&nanos)
        .then(|| Stamp::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rendered_is_parsed() {
        let hop = Stamps {
            clock: "b".into(),
            arrival: Some(Stamp::from_nanos(9)),
            host: Some("[::1]:30000".into()),
            worker: Some("w0".into()),
            span: SpanId::parse("00f067aa0ba902b7"),
            failed: ["w1!a:1!rejected!503!77", "w2!b:1!!!"]
                .iter()
                .filter_map(|text| Failed::parse(text))
                .collect(),
            ..Stamps::default()
        };
        let stamps = Stamps {
            clock: "a".into(),
            now: Some(Stamp::from_nanos(1_795_168_579_844_124_001)),
            arrival: Some(Stamp::from_nanos(3)),
            request_end: Some(Stamp::from_nanos(4)),
            forwarded: Some(Stamp::from_nanos(5)),
            host: Some("127.0.0.1:1".into()),
            attempts: Some(2),
            is_direct: true,
            joins_engine: true,
            hop: Some(Box::new(hop)),
            ..Stamps::default()
        };
        assert_eq!(Stamps::parse(&stamps.render()), Some(stamps));
    }

    #[test]
    fn what_cannot_be_read_is_as_if_absent() {
        assert_eq!(Stamps::parse("arrival=5"), None);
        let stamps = Stamps::parse("clock=a; arrival=x;;future=1;host=;now=7").unwrap();
        assert_eq!(
            (stamps.arrival, stamps.now, stamps.host),
            (None, Some(Stamp::from_nanos(7)), None)
        );
    }

    #[test]
    fn a_number_that_is_no_moment_is_refused() {
        for wrong in [
            "-9223372036854775808",
            "-1",
            "4611686018427387904",
            "9223372036854775807",
            "9223372036854775808",
            "1e18",
        ] {
            let stamps = Stamps::parse(&format!("clock=a;now={wrong};arrival=1")).unwrap();
            assert_eq!(stamps.now, None, "{wrong}");
            assert_eq!(stamps.arrival, Some(Stamp::from_nanos(1)));
        }
        for wrong in ["-1", "9223372036854775807"] {
            let failed = Failed::parse(&format!("w!h!timeout!503!{wrong}")).unwrap();
            assert_eq!((failed.status, failed.nanos), (Some(503), None), "{wrong}");
        }
    }
}
