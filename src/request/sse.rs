//! A scanner of server-sent events: it takes pieces of any size and gives the data of each event.
//!
//! Follows the WHATWG event-stream grammar (LF, CRLF and CR line ends, comments, multi-line data) and keeps no bytes: data is
//! passed on in the slices in which it arrived. Two differences, on purpose: an event that the stream's end cuts off before its
//! blank line still counts, because its bytes did arrive; a byte order mark, which no server sends, is not skipped.

use memchr::memchr2;

/// Receives what [`SseScanner`] finds.
pub trait EventSink {
    /// A piece of the current event's data. Lines of one event are joined by `\n`.
    fn data(&mut self, piece: &[u8]);
    /// The current event ends; it had at least one `data` line.
    fn event_end(&mut self);
}

/// Finds the data of events in a byte stream.
#[derive(Clone, Debug)]
pub struct SseScanner {
    state: State,
    /// The last byte was a CR, so an LF that follows belongs to it.
    after_cr: bool,
    /// The current event has a `data` line.
    has_data: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Within a field name, with this many bytes of `data` matched; with 0, at the start of a line.
    Name(usize),
    /// After the colon of `data:`; one space is skipped.
    AfterColon,
    Data,
    /// In a comment or another field.
    Skip,
}

const NAME: &[u8] = b"data";

impl Default for SseScanner {
    fn default() -> SseScanner {
        SseScanner {
            state: State::Name(0),
            after_cr: false,
            has_data: false,
        }
    }
}

impl SseScanner {
    /// Scans the next piece of the stream.
    pub fn feed(&mut self, mut rest: &[u8], sink: &mut impl EventSink) {
        while let Some(&byte) = rest.first() {
            if std::mem::take(&mut self.after_cr) && byte == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let used = match self.state {
                State::Name(matched) => self.name(matched, rest, sink),
                State::AfterColon => {
                    self.state = State::Data;
                    usize::from(byte == b' ')
                }
                State::Data => self.data(rest, sink),
                State::Skip => match memchr2(b'\n', b'\r', rest) {
                    Some(end) => end + self.line_end(rest[end]),
                    None => rest.len(),
                },
            };
            rest = &rest[used..];
        }
    }

    /// Ends the stream: an event without its blank line ends here.
    pub fn finish(&mut self, sink: &mut impl EventSink) {
        if let State::Name(4) = self.state {
            self.has_data = true;
        }
        self.event_end(sink);
        *self = SseScanner::default();
    }

    fn name(&mut self, matched: usize, rest: &[u8], sink: &mut impl EventSink) -> usize {
        if matched == 0 && rest.starts_with(b"data: ") {
            self.begin_data(sink);
            self.state = State::Data;
            return 6;
        }
        let byte = rest[0];
        if matches!(byte, b'\n' | b'\r') {
            match matched {
                0 => self.event_end(sink),
                4 => self.begin_data(sink),
                _ => {}
            }
            return self.line_end(byte);
        }
        self.state = match NAME.get(matched) {
            Some(next) if *next == byte => State::Name(matched + 1),
            None if byte == b':' => {
                self.begin_data(sink);
                State::AfterColon
            }
            _ => State::Skip,
        };
        1
    }

    fn data(&mut self, rest: &[u8], sink: &mut impl EventSink) -> usize {
        let end = memchr2(b'\n', b'\r', rest);
        let piece = &rest[..end.unwrap_or(rest.len())];
        if !piece.is_empty() {
            sink.data(piece);
        }
        end.map_or(rest.len(), |end| end + self.line_end(rest[end]))
    }

    fn begin_data(&mut self, sink: &mut impl EventSink) {
        if std::mem::replace(&mut self.has_data, true) {
            sink.data(b"\n");
        }
    }

    /// Ends a line at its CR or LF; returns the number of bytes used.
    fn line_end(&mut self, byte: u8) -> usize {
        self.after_cr = byte == b'\r';
        self.state = State::Name(0);
        1
    }

    fn event_end(&mut self, sink: &mut impl EventSink) {
        if std::mem::take(&mut self.has_data) {
            sink.event_end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Events {
        done: Vec<String>,
        current: Vec<u8>,
    }

    impl EventSink for Events {
        fn data(&mut self, piece: &[u8]) {
            self.current.extend_from_slice(piece);
        }
        fn event_end(&mut self) {
            self.done
                .push(String::from_utf8(std::mem::take(&mut self.current)).unwrap());
        }
    }

    fn events(pieces: &[&[u8]]) -> Vec<String> {
        let mut sink = Events::default();
        let mut scanner = SseScanner::default();
        for piece in pieces {
            scanner.feed(piece, &mut sink);
        }
        scanner.finish(&mut sink);
        sink.done
    }

    #[test]
    fn the_grammar() {
        let cases: &[(&str, &[&str])] = &[
            ("data: a\n\ndata: b\n\n", &["a", "b"]),
            ("data:a\r\n\r\ndata:  b\r\n\r\n", &["a", " b"]),
            ("data: a\r\rdata: b\r\r", &["a", "b"]),
            (": hello\ndata: a\n: more\ndata: b\n\n", &["a\nb"]),
            ("event: x\nid: 1\nretry: 3\ndata: a\n\n", &["a"]),
            ("data: a", &["a"]),
            ("data: a\n", &["a"]),
            ("data\n\n", &[""]),
            ("data", &[""]),
            ("dat: no\ndatax: no\n data: no\n\n", &[]),
            ("event: only\n\n\n\n", &[]),
            ("data: {\"a\":\"data: \"}\n\n", &["{\"a\":\"data: \"}"]),
            ("data: a\n\r\ndata: b\r\n\n", &["a", "b"]),
        ];
        for (input, expected) in cases {
            assert_eq!(&events(&[input.as_bytes()]), expected, "{input:?}");
        }
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            input in "(data|data:|data: |:|id: |[a-c{}\"]|\n|\r|\r\n){0,40}",
            lengths in prop::collection::vec(0usize..40, 0..20),
        ) {
            let mut rest = input.as_bytes();
            let mut pieces = Vec::new();
            for length in lengths {
                let piece;
                (piece, rest) = rest.split_at(length.min(rest.len()));
                pieces.push(piece);
            }
            pieces.push(rest);
            prop_assert_eq!(events(&pieces), events(&[input.as_bytes()]));
        }
    }
}
