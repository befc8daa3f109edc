//! The headers in which a hop tells the front, and the front its client, what they have stamped.
//!
//! Form: a JSON array of the members of [`Stamps`] in their order, stamps in epoch nanoseconds of the sender's clock, which the first
//! names (a name of its own for each process, so that equal names mean one clock): `["4bf9",1795168579844124001,…,"127.0.0.1:30000",…]`.
//! Those that lack at the end are unknown, and so are those of a later version: new ones are added at the end.

use serde::Deserialize;
use serde_json::Value;
use serde_tuple::Serialize_tuple;

use crate::clock::Stamp;

use super::attempt::{Failed, MAX_FAILED, SpanId};

/// Request header by which a client asks the front for [`FRONT_HEADER`] (value `1`).
pub const ASK_HEADER: &str = "x-queuescope-stamps";
/// Response header with the front's stamps, only for clients that asked.
pub const FRONT_HEADER: &str = "x-queuescope-stamps";
/// Response header with the hop's stamps; the front takes it off.
pub const HOP_HEADER: &str = "x-queuescope-hop";

/// What one process of ours stamped of a request, up to its sending of the response head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize_tuple)]
#[serde(default)]
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

/// How many members there are.
const MEMBERS: usize = 14;

/// Room for what one process stamped, so that it is allocated once.
const USUAL_BYTES: usize = 256;

impl Stamps {
    /// The header's value.
    pub fn render(&self) -> String {
        let mut text = Vec::with_capacity(USUAL_BYTES);
        // Nothing in it can fail to be written, and JSON is UTF-8.
        let _ = serde_json::to_writer(&mut text, self);
        String::from_utf8(text).unwrap_or_default()
    }

    /// Reads a header's value. `None` when it is none, or names no clock, since stamps of an unknown clock say nothing.
    pub fn parse(value: &str) -> Option<Stamps> {
        let of_a_later_version = || {
            let mut all: Vec<Value> = serde_json::from_str(value).ok()?;
            all.truncate(MEMBERS);
            serde_json::from_value(all.into()).ok()
        };
        let strictly = serde_json::from_str(value).ok();
        let mut stamps: Stamps = strictly.or_else(of_a_later_version)?;
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
        assert_eq!(members.len(), MEMBERS);
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
