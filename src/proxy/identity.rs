//! Request ids and W3C trace contexts: <https://www.w3.org/TR/trace-context/>, version 00.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

use crate::request::{Hex, SpanId};

/// The request id header.
pub const REQUEST_ID: &str = "x-request-id";
/// The trace context header.
pub const TRACEPARENT: &str = "traceparent";
/// W3C header with what vendors add to a trace.
pub const TRACESTATE: &str = "tracestate";

/// The member of [`TRACESTATE`] in a trace that a proxy of ours began: whether it is sampled is not decided yet.
pub const BEGAN: &str = "queuescope=began";

/// [`REQUEST_ID`] as a name: a map finds that faster than text.
pub static ID: HeaderName = HeaderName::from_static(REQUEST_ID);
static PARENT: HeaderName = HeaderName::from_static(TRACEPARENT);
static STATE: HeaderName = HeaderName::from_static(TRACESTATE);
/// The W3C flag of a sampled trace.
const SAMPLED: u8 = 1;
/// The most bytes of a request id that a record keeps.
const MAX_ID_BYTES: usize = 256;

/// A request's place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The trace id, not 0.
    pub id: u128,
    /// All flags, [`SAMPLED`] among them.
    flags: u8,
    /// The span that the request carried; `None` in a trace that we began.
    pub parent: Option<SpanId>,
    /// Whether its sender had it sampled; `None` if that is not decided yet.
    pub received_sampled: Option<bool>,
}

/// Returns a new request id: 32 random hex digits.
pub fn new_request_id() -> String {
    Hex::<32>::of(rand::random()).text().to_owned()
}

/// Returns the client's request id as a record shows it; `None` if it sent none or a blank one.
pub fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(&ID)?.as_bytes();
    let id = &id[..id.len().min(MAX_ID_BYTES)];
    let shown = str::from_utf8(id).map_or_else(|_| String::from_utf8_lossy(id), Cow::Borrowed);
    (!shown.trim().is_empty()).then(|| shown.into_owned())
}

impl Trace {
    /// Begins a trace, not sampled.
    pub fn random() -> Trace {
        Trace {
            id: rand::random::<u128>().max(1),
            flags: 0,
            parent: None,
            received_sampled: None,
        }
    }

    /// Reads the client's trace; `None` if the header is missing, repeated or invalid.
    pub fn of(headers: &HeaderMap) -> Option<Trace> {
        let mut all = headers.get_all(&PARENT).iter();
        let (Some(value), None) = (all.next(), all.next()) else {
            return None;
        };
        let mut trace = Trace::parse(value.to_str().ok()?.trim())?;
        let states = headers.get_all(&STATE).iter();
        let members = states.filter_map(|state| state.to_str().ok());
        let mut members = members.flat_map(|state| state.split(','));
        let is_undecided = !trace.is_sampled() && members.any(|member| member.trim() == BEGAN);
        trace.received_sampled = (!is_undecided).then(|| trace.is_sampled());
        Some(trace)
    }

    fn parse(text: &str) -> Option<Trace> {
        // The parts have fixed lengths. Version 00 has exactly these four; later ones may append more.
        let (four, more) = text.split_at_checked(55)?;
        let version = Hex::<2>::parse(four.get(..2)?)?;
        let trace = Trace {
            id: Hex::<32>::parse(four.get(3..35)?)?,
            parent: Some(SpanId::parse(four.get(36..52)?)?),
            flags: Hex::<2>::parse(four.get(53..)?)? as u8,
            received_sampled: None,
        };
        let is_apart = [2, 35, 52].iter().all(|at| four.as_bytes()[*at] == b'-');
        let is_whole = more.is_empty() || version != 0 && more.starts_with('-');
        (is_apart && is_whole && version != 0xff && trace.id != 0).then_some(trace)
    }

    /// Returns the id as 32 hex digits.
    pub fn id_text(&self) -> String {
        Hex::<32>::of(self.id).text().to_owned()
    }

    /// Whether it has the sampled flag.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Sets or clears the sampled flag; others stay.
    pub fn sample(&mut self, is_sampled: bool) {
        self.flags = (self.flags & !SAMPLED) | u8::from(is_sampled);
    }

    /// Returns the `traceparent` that makes `span` the parent.
    pub fn with_parent(&self, span: SpanId) -> String {
        let (id, flags) = (Hex::<32>::of(self.id), Hex::<2>::of(self.flags.into()));
        ["00", id.text(), span.hex().text(), flags.text()].join("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    /// A parent, a state beside it, and whether its trace is sampled; `none` if it is no valid parent.
    const PARENTS: [(&str, &str, &str); 12] = [
        ("00-ID-SPAN-00", "a=1", "false"),
        ("00-ID-SPAN-00", "a=1, queuescope=began", "undecided"),
        ("00-ID-SPAN-01", "queuescope=began", "true"),
        ("cc-ID-SPAN-00-what-comes", "", "false"),
        ("00-ID-SPAN", "", "none"),
        ("00-ID-SPAN-01-more", "", "none"),
        ("ff-ID-SPAN-01", "", "none"),
        ("00-ID-0000000000000000-01", "", "none"),
        ("00-00000000000000000000000000000000-SPAN-01", "", "none"),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-SPAN-01", "", "none"),
        ("00-bf92f3577b34da6a3ce929d0e0e4736-SPAN-01", "", "none"),
        ("nonsense", "", "none"),
    ];

    #[test]
    fn a_valid_parent_is_a_trace_and_sampling_one_that_a_proxy_of_ours_began_is_undecided() {
        for (parent, state, sampled) in PARENTS {
            let parent = parent.replace("ID", ID).replace("SPAN", SPAN);
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, parent.parse().unwrap());
            headers.append(TRACESTATE, http::HeaderValue::from_static("x=y"));
            headers.append(TRACESTATE, http::HeaderValue::from_static(state));
            let trace = Trace::of(&headers).map(|trace| trace.received_sampled);
            let text = trace.map(|by| by.map_or("undecided".to_owned(), |yes| yes.to_string()));
            assert_eq!(text.as_deref().unwrap_or("none"), sampled, "{parent}");
        }
    }
}
