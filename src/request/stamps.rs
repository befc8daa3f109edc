//! The headers by which a hop sends its timestamps to the front, and the front sends its own to a client.
//!
//! Form: a JSON array of the members of [`Stamps`] in their order, timestamps in epoch nanoseconds of the sender's clock. The
//! first member names that clock by a name unique to the process: `["4bf9",1795168579844124001,…,"127.0.0.1:30000",…]`. Members
//! missing at the end are unknown; further ones, of a later version, are ignored: new members are added at the end.

use serde::Deserialize;
use serde_json::Value;
use serde_tuple::Serialize_tuple;

use crate::clock::Stamp;

use super::attempt::{FailedAttempt, MAX_FAILED, SpanId};

/// Request header in which a client asks the front for [`FRONT_HEADER`] (value `1`).
pub const STAMPS_REQUEST_HEADER: &str = "x-queuescope-stamps";
/// Response header with the front's timestamps, only for clients that asked.
pub const FRONT_HEADER: &str = "x-queuescope-stamps";
/// Response header with the hop's timestamps; the front removes it.
pub const HOP_HEADER: &str = "x-queuescope-hop";

/// The timestamps of a request in one process of ours, up to its sending of the response head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize_tuple)]
#[serde(default)]
pub struct Stamps {
    /// The name of the process's clock.
    pub clock: String,
    /// When the header was written.
    pub now: Option<Stamp>,
    /// The request head was read.
    pub arrival: Option<Stamp>,
    /// The last byte of the request body was read.
    pub request_end: Option<Stamp>,
    /// The head was sent upstream.
    pub forwarded: Option<Stamp>,
    /// The server it was sent to, `host:port`.
    pub host: Option<String>,
    /// The number of times it was sent upstream.
    pub attempts: Option<u32>,
    /// Its upstream is the server itself: there is no router between.
    pub is_direct: bool,
    /// The sender joins the traces or logs of servers to its own rows.
    pub joins_engine: bool,
    /// The hop's name.
    pub worker: Option<String>,
    /// The sender's own span, sent upstream as the parent.
    pub span: Option<SpanId>,
    /// `bootstrap_room`: the number by which the servers of a pair know the request.
    pub room: Option<u64>,
    /// Earlier attempts at the request that failed.
    pub failed: Vec<FailedAttempt>,
    /// The hop's timestamps, passed on by the front.
    pub hop: Option<Box<Stamps>>,
}

/// The number of members.
const MEMBER_COUNT: usize = 14;

impl Stamps {
    /// Renders the header's value.
    pub fn render(&self) -> String {
        // Rendering numbers and text cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses a header's value; `None` if it is invalid or names no clock, as timestamps of an unknown clock are useless.
    pub fn parse(value: &str) -> Option<Stamps> {
        let later_version = || {
            let mut all: Vec<Value> = serde_json::from_str(value).ok()?;
            all.truncate(MEMBER_COUNT);
            serde_json::from_value(all.into()).ok()
        };
        let this_version = serde_json::from_str(value).ok();
        let mut stamps: Stamps = this_version.or_else(later_version)?;
        stamps.failed.truncate(MAX_FAILED);
        stamps.hop = stamps.hop.filter(|hop| !hop.clock.is_empty());
        Some(stamps).filter(|stamps| !stamps.clock.is_empty())
    }

    /// Returns the key of the clock of the engine at `host`. It includes the sender's clock, as one address may be different
    /// servers for two senders, such as a server on the sender's machine.
    pub fn engine_clock(&self, host: &str) -> String {
        format!("{} {host}", self.clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::attempt::parse_failed;

    #[test]
    fn rendered_stamps_are_parsed() {
        let hop = Stamps {
            arrival: Some(Stamp::from_nanos(9)),
            host: Some("[::1]:30000".into()),
            worker: Some("w0".into()),
            span: SpanId::parse("00f067aa0ba902b7"),
            failed: parse_failed("a:1 rejected 503 after 0.000077 s; b:1 open").collect(),
            ..stamps_of("b")
        };
        let stamps = Stamps {
            now: Some(Stamp::from_nanos(1_795_168_579_844_124_001)),
            arrival: Some(Stamp::from_nanos(3)),
            request_end: Some(Stamp::from_nanos(4)),
            forwarded: Some(Stamp::from_nanos(5)),
            host: Some("127.0.0.1:1".into()),
            attempts: Some(2),
            is_direct: true,
            joins_engine: true,
            hop: Some(Box::new(hop)),
            ..stamps_of("a")
        };
        assert_eq!(Stamps::parse(&stamps.render()), Some(stamps));
    }

    #[test]
    fn invalid_stamps_are_refused() {
        for wrong in [
            "",
            "[]",
            "clock=a;now=1",
            r#"["",5]"#,
            r#"["a","soon"]"#,
            r#"["a",-9223372036854775808]"#,
            r#"["a",-1]"#,
            r#"["a",4611686018427387904]"#,
            r#"["a",1,2,3,4,"h",1,false,false,"w",0]"#,
            r#"["a",1,2,3,4,"h",1,false,false,null,null,7,[],["b",9223372036854775808]]"#,
        ] {
            assert_eq!(Stamps::parse(wrong), None, "{wrong}");
        }
        let short = r#"["a",7,null,null,null,null,null,false,false,null,null,null,[],[""]]"#;
        let stamps = Stamps::parse(short).unwrap();
        assert_eq!((stamps.now, stamps.hop), (Some(Stamp::from_nanos(7)), None));
        let later = r#"["a",null,null,null,null,null,null,false,false,null,null,null,[],null,"of a later version"]"#;
        let last = r#"{"clock":"a","is_direct":false}"#;
        for known in [r#"["a"]"#, later, last] {
            assert_eq!(Stamps::parse(known), Some(stamps_of("a")), "{known}");
        }
        let members: Vec<Value> = serde_json::from_str(&Stamps::default().render()).unwrap();
        assert_eq!(members.len(), MEMBER_COUNT);
        let many = vec!["h timeout 503 after 9223372036 s"; 2 * MAX_FAILED].join("; ");
        let stamps = Stamps {
            failed: parse_failed(&many).collect(),
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
