//! The fast path for similar documents. From one event of a stream to the next a few values change, and all other bytes are the
//! same. So a document that was scanned whole is kept, with the calls that its scan made to the sink, and later ones are compared
//! with it. Where the bytes differ, both documents are in the same state, as all before is equal: within the same value, or at
//! its end. If that value ends in both, the comparison goes on after it; any other difference means that the document is scanned
//! from its start.
//!
//! Streams are similar, too: documents kept for one stream are tried for the other streams of the same thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use super::leaf::Leaf;
use super::{Field, Rule, Sink};

/// The longest document that is kept, bytes.
const MAX_BYTES: usize = 4096;
/// The maximum number of changed values.
const MAX_CHANGES: usize = 32;
/// The maximum number of documents that a thread keeps for all its streams.
const MAX_SHARED: usize = 8;
/// The maximum number of these that one stream adds.
const MAX_SHARED_BY_STREAM: usize = 4;
/// A stream that has shared no document yet scans one after a replay of another stream's and this many more: its own differ less
/// from each other.
const MAX_BORROWED: usize = 1;

thread_local! {
    /// The shared documents, newest first.
    static SHARED: RefCell<VecDeque<Arc<Recording>>> = const { RefCell::new(VecDeque::new()) };
    /// A buffer for the changes of a document, reused.
    static SPARE_CHANGES: Cell<Vec<Change>> = const { Cell::new(Vec::new()) };
}

/// The documents that those of one stream are compared with.
#[derive(Debug, Default)]
pub struct Template {
    /// Documents are kept and compared; else there is no fast path.
    pub is_on: bool,
    /// The one that the stream scanned last.
    own: Recording,
    /// The shared one that the last document matched, and the number of matches since.
    other: Option<(Arc<Recording>, usize)>,
    /// The current scan is being recorded in `own`.
    is_recording: bool,
    /// The index of the first of the optional values found since the last were reported.
    optional: Option<u8>,
    /// The number of documents that the stream has shared.
    shared: usize,
}

/// A document, and the calls that its scan by `root` made. It is none if it has no bytes.
#[derive(Clone, Debug, Default)]
struct Recording {
    root: Option<&'static Rule>,
    bytes: Vec<u8>,
    leaves: Vec<(Leaf, Span)>,
    calls: Vec<Call>,
}

/// A call to the sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Open(Field),
    Close(Field),
    /// A leaf, by its index.
    Leaf(u8),
    /// The optional leaves from one index to another.
    Optional(u8, u8),
}

/// Start and end of a leaf in the recorded document; small, since every stream has one.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u16,
    end: u16,
}

/// A value that differs in a document: its leaf's index, and its start and end there.
#[derive(Clone, Copy, Debug)]
struct Change {
    index: u32,
    start: u32,
    end: u32,
}

impl Template {
    /// Whether `document`, to be scanned by `root`, begins with a whole document that differs from a recorded one in values only;
    /// if so, makes the scan's calls to the sink.
    pub fn replay(&mut self, root: &'static Rule, document: &[u8], sink: &mut impl Sink) -> bool {
        // Recorded documents are objects; the last event of many streams is none.
        if !self.is_on || document.first() != Some(&b'{') {
            return false;
        }
        let mut changes = SPARE_CHANGES.take();
        let found = self.find_match(root, document, &mut changes);
        let replayed = found.map(|recording| recording.replay(document, &changes, sink));
        SPARE_CHANGES.set(changes);
        replayed.is_some()
    }

    /// Finds a recording that the document matches, and sets `changes` to where it differs.
    fn find_match(
        &mut self,
        root: &'static Rule,
        document: &[u8],
        changes: &mut Vec<Change>,
    ) -> Option<&Recording> {
        let current = match &mut self.other {
            Some((_, MAX_BORROWED)) if self.shared == 0 && document.len() <= MAX_BYTES => {
                return None;
            }
            Some((other, matches)) => {
                *matches += 1;
                other
            }
            None => &self.own,
        };
        if !current.matches(root, document, changes) {
            let other = SHARED.with_borrow(|all| {
                let mut all = all.iter();
                all.find(|shared| shared.matches(root, document, changes))
                    .cloned()
            });
            self.other = Some((other?, 0));
        }
        Some(match &self.other {
            Some((other, _)) => other,
            None => &self.own,
        })
    }

    /// Begins a document that is to be scanned.
    pub fn begin(&mut self, root: &'static Rule, bytes: &[u8]) {
        if !self.is_on {
            return;
        }
        (self.other, self.optional) = (None, None);
        self.own.bytes.clear();
        self.own.leaves.clear();
        self.own.calls.clear();
        self.own.root = Some(root);
        self.is_recording = bytes.len() <= MAX_BYTES && bytes.ends_with(b"}");
        if self.is_recording {
            self.own.bytes.extend_from_slice(bytes);
        }
    }

    /// Ends the piece that the document began with. The recording is kept if the document was the whole piece.
    pub fn end(&mut self, is_whole: bool) {
        if !std::mem::take(&mut self.is_recording) {
            return;
        }
        if !is_whole || self.optional.is_some() {
            self.own.bytes.clear();
        } else if self.shared < MAX_SHARED_BY_STREAM {
            self.shared += 1;
            SHARED.with_borrow_mut(|all| {
                all.truncate(MAX_SHARED - 1);
                all.push_front(Arc::new(self.own.clone()));
            });
        }
    }

    /// Records that the scan reported a container's begin.
    pub fn open(&mut self, field: Field) {
        if self.is_recording {
            self.own.calls.push(Call::Open(field));
        }
    }

    /// Records that the scan reported a container's end.
    pub fn close(&mut self, field: Field) {
        if !self.is_recording {
            return;
        }
        // The sink is asked whether it wants optional values when what has them ends: by then it knows.
        let is_end = matches!(field, Field::Item | Field::Choice);
        if let Some(first) = self.optional.take_if(|_| is_end) {
            let last = (self.own.leaves.len() - 1) as u8;
            self.own.calls.push(Call::Optional(first, last));
        }
        self.own.calls.push(Call::Close(field));
    }

    /// Records a value that the scan found; start and end are counted from the end of the document.
    pub fn leaf(&mut self, leaf: Leaf, start: usize, end: usize) {
        if !self.is_recording {
            return;
        }
        let own = &mut self.own;
        let span = |from_end: usize| u16::try_from(own.bytes.len() - from_end).ok();
        let index = u8::try_from(own.leaves.len()).ok();
        let (Some(start), Some(end), Some(index)) = (span(start), span(end), index) else {
            return self.end(false);
        };
        if leaf.is_optional() {
            self.optional.get_or_insert(index);
        } else if leaf.is_reported() {
            own.calls.push(Call::Leaf(index));
        }
        own.leaves.push((leaf, Span { start, end }));
    }
}

impl Recording {
    /// Makes the scan's calls for a document with these changes.
    fn replay(&self, document: &[u8], mut changes: &[Change], sink: &mut impl Sink) {
        let mut optional = changes;
        for call in &self.calls {
            match *call {
                Call::Open(field) => sink.open(field),
                Call::Close(field) => sink.close(field),
                Call::Leaf(index) => self.replay_leaf(index, document, &mut changes, sink),
                Call::Optional(first, last) if sink.wants_optional() => {
                    for index in first..=last {
                        if self.leaves[usize::from(index)].0.is_optional() {
                            self.replay_leaf(index, document, &mut optional, sink);
                        }
                    }
                }
                Call::Optional(..) => {}
            }
        }
    }

    /// Reports one leaf: from the document if it is in `changes`, whose earlier entries are dropped; else from the recording.
    fn replay_leaf(
        &self,
        index: u8,
        document: &[u8],
        changes: &mut &[Change],
        sink: &mut impl Sink,
    ) {
        while let [first, rest @ ..] = *changes
            && first.index <= u32::from(index)
        {
            *changes = rest;
            if first.index == u32::from(index) {
                let (leaf, _) = self.leaves[usize::from(index)];
                return leaf.report(&document[first.start as usize..first.end as usize], sink);
            }
        }
        let (leaf, Span { start, end }) = self.leaves[usize::from(index)];
        leaf.report(&self.bytes[start.into()..end.into()], sink);
    }

    /// Whether a document to be scanned by `root` begins with a whole one that differs from this in values only; then sets `changes`.
    fn matches(&self, root: &Rule, document: &[u8], changes: &mut Vec<Change>) -> bool {
        changes.clear();
        let is_same_root = self.root.is_some_and(|own| ptr::eq(own, root));
        is_same_root && !self.bytes.is_empty() && self.find_changes(document, changes).is_some()
    }

    fn find_changes(&self, document: &[u8], changes: &mut Vec<Change>) -> Option<()> {
        let mut leaves = self.leaves.iter().zip(0..);
        let (mut here, mut there) = (0, 0);
        loop {
            let same = common_prefix_len(&self.bytes[here..], &document[there..]);
            here += same;
            there += same;
            if here == self.bytes.len() {
                return Some(());
            }
            let ((leaf, span), index) =
                leaves.find(|((_, span), _)| usize::from(span.end) >= here)?;
            let start = there - here.checked_sub(usize::from(span.start))?;
            there = start + leaf.end(&document[start..])?;
            here = usize::from(span.end);
            if changes.len() == MAX_CHANGES {
                return None;
            }
            let (start, end) = (u32::try_from(start).ok()?, u32::try_from(there).ok()?);
            changes.push(Change { index, start, end });
        }
    }
}

/// Returns the length of the common prefix.
fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    let by_32 = a.as_chunks::<32>().0.iter().zip(b.as_chunks::<32>().0);
    let mut same = 32 * by_32.take_while(|(a, b)| a == b).count();
    let (eights, _) = a[same..].as_chunks::<8>();
    for (a, b) in eights.iter().zip(b[same..].as_chunks::<8>().0) {
        let apart = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if apart != 0 {
            return same + apart.trailing_zeros() as usize / 8;
        }
        same += 8;
    }
    let rest = a[same..].iter().zip(&b[same..]);
    same + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
