//! The headers in which a hop tells the front, and the front its client, what they have stamped.
//!
//! Form: JSON, stamps in epoch nanoseconds of the sender's clock, which `clock` names (a name of its own for each process, so that
//! equal names mean one clock): `{"clock":"4bf9","now":…,"arrival":…,"forwarded":…,"host":"127.0.0.1:30000",…}`. Unknown keys
//! are skipped, those that lack are unknown.

use serde::{Deserialize, Serialize};

use crate::clock::Stamp;

use super::attempt::{Failed, MAX_FAILED, SpanId};

/// Request header by which a client asks the front for [`FRONT_HEADER`] (value `1`).
pub const ASK_HEADER: &str = "x-queuescope-stamps";
/// Response header with the front's stamps, only for clients that asked.
pub const FRONT_HEADER: &str = "x-queuescope-stamps";
/// Response header with the hop's stamps; the front takes it off.
pub const HOP_HEADER: &str = "x-queuescope-hop";

/// What one process of ours stamped of a request, up to its sending of the response head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Stamps {
    /// Name of the process's clock.
    pub clock: String,
    /// The clock at the moment the header was written.
    #[serde(skip_serializing_if = "is_unknown")]
    pub now: Option<Stamp>,
    /// The request head was read.
    #[serde(skip_serializing_if = "is_unknown")]
    pub arrival: Option<Stamp>,
    /// The last byte of the request body was read.
    #[serde(skip_serializing_if = "is_unknown")]
    pub request_end: Option<Stamp>,
    /// The head was sent upstream.
    #[serde(skip_serializing_if = "is_unknown")]
    pub forwarded: Option<Stamp>,
    /// The server it was sent to, `host:port`.
    #[serde(skip_serializing_if = "is_unknown")]
    pub host: Option<String>,
    /// How many times it was sent upstream.
    #[serde(skip_serializing_if = "is_unknown")]
    pub attempts: Option<u32>,
    /// Its upstream is the server itself: no router stands between.
    #[serde(skip_serializing_if = "is_unknown")]
    pub is_direct: bool,
    /// What servers tell by their traces or logs goes into the sender's rows.
    #[serde(skip_serializing_if = "is_unknown")]
    pub joins_engine: bool,
    /// The hop's name.
    #[serde(skip_serializing_if = "is_unknown")]
    pub worker: Option<String>,
    /// The sender's own span: what it sent upstream as the parent.
    #[serde(skip_serializing_if = "is_unknown")]
    pub span: Option<SpanId>,
    /// By what number the servers of a pair know the request.
    #[serde(skip_serializing_if = "is_unknown")]
    pub room: Option<u64>,
    /// Earlier attempts at the same request that the sender saw fail.
    #[serde(skip_serializing_if = "is_unknown")]
    pub failed: Vec<Failed>,
    /// The hop's own stamps, passed on by the front.
    #[serde(skip_serializing_if = "is_unknown")]
    pub hop: Option<Box<Stamps>>,
}

/// What is not known is not written: each request has such a header.
fn is_unknown<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Stamps {
    /// The header's value.
    pub fn render(&self) -> String {
        // Nothing in it can fail to be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a header's value. `None` when it is none, or names no clock, since stamps of an unknown clock say nothing.
    pub fn parse(value: &str) -> Option<Stamps> {
        let mut stamps: Stamps = serde_json::from_str(value).ok()?;
        stamps.failed.truncate(MAX_FAILED);
        stamps.hop = stamps.hop.filter(|hop| !hop.clock.is_empty());
        Some(stamps).filter(|stamps| !stamps.clock.is_empty())
    }

    /// The clock of the engine at `host`, as the sender of these stamps calls it. Two senders may mean different
    /// servers by one address, such as that of a server beside them.
    pub fn engine_clock(&self, host: &str) -> String {
        format!("{} {host}", self.clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::attempt::told;

    #[test]
    fn what_is_rendered_is_parsed() {
        let hop = Stamps {
            clock: "b".into(),
            arrival: Some(Stamp::from_nanos(9)),
            host: Some("[::1]:30000".into()),
            worker: Some("w0".into()),
            span: SpanId::parse("00f067aa0ba902b7"),
            failed: told("a:1 rejected 503 after 0.000077 s; b:1 open").collect(),
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
    fn what_is_no_stamps_is_refused() {
        for wrong in [
            "",
            "clock=a;now=1",
            r#"{"now":5}"#,
            r#"{"clock":"","now":5}"#,
            r#"{"clock":"a","now":"soon"}"#,
            r#"{"clock":"a","now":-9223372036854775808}"#,
            r#"{"clock":"a","now":-1}"#,
            r#"{"clock":"a","now":4611686018427387904}"#,
            r#"{"clock":"a","hop":{"clock":"b","arrival":9223372036854775808}}"#,
            r#"{"clock":"a","span":0}"#,
        ] {
            assert_eq!(Stamps::parse(wrong), None, "{wrong}");
        }
        let later = r#"{"clock":"a","future":{"x":[1]},"hop":{"now":4},"now":7}"#;
        let stamps = Stamps::parse(later).unwrap();
        assert_eq!((stamps.now, stamps.hop), (Some(Stamp::from_nanos(7)), None));
        let many = vec!["h timeout 503 after 9223372036 s"; 2 * MAX_FAILED].join("; ");
        let stamps = Stamps {
            failed: told(&many).collect(),
            ..stamps_of("a")
        };
        let read = Stamps::parse(&stamps.render()).unwrap().failed;
        let one = (read[0].status, read[0].nanos);
        assert_eq!((read.len(), one), (MAX_FAILED, (Some(503), None)));
    }

    fn stamps_of(clock: &str) -> Stamps {
        Stamps {
            clock: clock.to_owned(),
            ..Stamps::default()
        }
    }
}
