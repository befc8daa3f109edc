//! Documents of a stream are alike: from one to the next, a few values change and all else is the same, byte by byte.
//! So one that has been scanned whole is kept, and those after it are compared with it: only where the two part is
//! anything scanned. Up to there both were read alike, so it is within, or at the end of, the same value; behind it
//! both are read alike again. Whatever else is different, a scan from the document's start finds out.
//!
//! Streams are alike, too: what was kept of one is tried for the documents of others on the same thread, be it the first
//! or the last kind of a stream's.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use super::Rule;
use super::leaf::Leaf;
use super::sink::Sink;
use crate::request::field::Field;

/// The longest document that is kept, bytes.
const LONGEST: usize = 4096;
/// The most values that may have changed.
const CHANGES: usize = 32;
/// Documents that a thread keeps for all its streams.
const SHARED: usize = 8;
/// Of these, those that a stream adds.
const OF_STREAM: usize = 4;
/// After so many documents like another stream's, the next of a stream that has none of its own is scanned: what follows differs
/// less from that.
const BORROWED: usize = 1;

thread_local! {
    /// The newest first.
    static KNOWN: RefCell<VecDeque<Arc<Known>>> = const { RefCell::new(VecDeque::new()) };
    /// Room for the changes of a document, used again and again.
    static SPARE: Cell<Vec<Change>> = const { Cell::new(Vec::new()) };
}

/// What the documents of a stream are compared with.
#[derive(Debug, Default)]
pub struct Template {
    /// The one that was scanned last.
    own: Known,
    /// Of another stream or another kind, and what the last one was like; and how many were.
    other: Option<(Arc<Known>, usize)>,
    is_recording: bool,
    /// Values that the scan found and the sink may want, within how many containers.
    wanted: Option<(u8, usize)>,
    depth: usize,
    /// Documents that were shared with other streams.
    shared: usize,
}

/// A document, and what a scan by `root` told of it. Without bytes there is none.
#[derive(Clone, Debug, Default)]
struct Known {
    root: Option<&'static Rule>,
    bytes: Vec<u8>,
    leaves: Vec<(Leaf, Place)>,
    told: Vec<Told>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Open(Field),
    Close(Field),
    /// By its index.
    Leaf(u8),
    /// Those from one index to another that the sink may want.
    Wanted(u8, u8),
}

/// From where to where in the document that is kept; small, since every stream has one.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u16,
    end: u16,
}

/// A value that is another in a document: its index, and its place there.
#[derive(Clone, Copy, Debug)]
struct Change {
    index: u32,
    start: u32,
    end: u32,
}

impl Template {
    /// Whether `document`, to be scanned by `root`, begins with a whole one that differs from one before in values only;
    /// then tells of it.
    pub fn repeats<S: Sink>(&mut self, root: &'static Rule, document: &[u8], sink: &mut S) -> bool {
        // What is kept is an object; the last event of many streams is none.
        if document.first() != Some(&b'{') {
            return false;
        }
        let mut changes = SPARE.take();
        let known = self.like(root, document, &mut changes);
        if let Some(known) = known {
            known.tell(document, &changes, sink);
        }
        let is_known = known.is_some();
        SPARE.set(changes);
        is_known
    }

    /// What the document is like, but for these changes.
    fn like(
        &mut self,
        root: &'static Rule,
        document: &[u8],
        changes: &mut Vec<Change>,
    ) -> Option<&Known> {
        let present = match &mut self.other {
            Some((_, BORROWED)) if self.shared == 0 && document.len() <= LONGEST => return None,
            Some((other, likes)) => {
                *likes += 1;
                other
            }
            None => &self.own,
        };
        if !present.compare(document, changes) {
            let same_root = |known: &&Arc<Known>| known.root.is_some_and(|of| ptr::eq(of, root));
            let other = KNOWN.with_borrow(|all| {
                let mut of_root = all.iter().filter(same_root);
                of_root
                    .find(|known| known.compare(document, changes))
                    .cloned()
            });
            self.other = Some((other?, 0));
        }
        Some(match &self.other {
            Some((other, _)) => other,
            None => &self.own,
        })
    }

    /// A document begins that is to be scanned.
    pub fn begin(&mut self, root: &'static Rule, bytes: &[u8]) {
        (self.other, self.wanted, self.depth) = (None, None, 0);
        self.own.bytes.clear();
        self.own.leaves.clear();
        self.own.told.clear();
        self.own.root = Some(root);
        self.is_recording = bytes.len() <= LONGEST && bytes.ends_with(b"}");
        if self.is_recording {
            self.own.bytes.extend_from_slice(bytes);
        }
    }

    /// The piece is over that the document began with. It is kept if the document was the piece.
    pub fn end(&mut self, is_whole: bool) {
        if !std::mem::take(&mut self.is_recording) {
            return;
        }
        if !is_whole || self.wanted.is_some() {
            self.own.bytes.clear();
        } else if self.shared < OF_STREAM {
            self.shared += 1;
            KNOWN.with_borrow_mut(|all| {
                all.truncate(SHARED - 1);
                all.push_front(Arc::new(self.own.clone()));
            });
        }
    }

    /// The scan told of a container's begin.
    pub fn open(&mut self, field: Field) {
        self.depth += 1;
        if self.is_recording {
            self.own.told.push(Told::Open(field));
        }
    }

    /// The scan told of a container's end.
    pub fn close(&mut self, field: Field) {
        self.depth = self.depth.saturating_sub(1);
        if !self.is_recording {
            return;
        }
        // What the sink may want it is asked for at the end of what holds their container: by then it knows.
        if let Some((first, _)) = self.wanted.take_if(|(_, depth)| self.depth + 1 < *depth) {
            let last = self.own.leaves.len() as u8 - 1;
            self.own.told.push(Told::Wanted(first, last));
        }
        self.own.told.push(Told::Close(field));
    }

    /// The scan found a value. Its ends are counted from the end of the document.
    pub fn leaf<S: Sink>(&mut self, leaf: Leaf, start: usize, end: usize) {
        if !self.is_recording {
            return;
        }
        let known = &mut self.own;
        let place = |from_end: usize| u16::try_from(known.bytes.len() - from_end).ok();
        let index = u8::try_from(known.leaves.len()).ok();
        let (Some(start), Some(end), Some(index)) = (place(start), place(end), index) else {
            return self.end(false);
        };
        if leaf.is_optional::<S>() {
            let (_, depth) = *self.wanted.get_or_insert((index, self.depth));
            if depth != self.depth {
                return self.end(false);
            }
        } else if leaf.is_told() {
            known.told.push(Told::Leaf(index));
        }
        known.leaves.push((leaf, Place { start, end }));
    }
}

impl Known {
    /// Tells of a document with these changes.
    fn tell<S: Sink>(&self, document: &[u8], mut changes: &[Change], sink: &mut S) {
        let mut wanted = changes;
        for told in &self.told {
            match *told {
                Told::Open(field) => sink.open(field),
                Told::Close(field) => sink.close(field),
                Told::Leaf(index) => self.tell_leaf(index, document, &mut changes, sink),
                Told::Wanted(first, last) if sink.wants() => {
                    for index in first..=last {
                        if self.leaves[usize::from(index)].0.is_optional::<S>() {
                            self.tell_leaf(index, document, &mut wanted, sink);
                        }
                    }
                }
                Told::Wanted(..) => {}
            }
        }
    }

    /// Tells of one value: as it is in the document, if `changes`, of which those before it are passed, has it.
    fn tell_leaf<S: Sink>(
        &self,
        index: u8,
        document: &[u8],
        changes: &mut &[Change],
        sink: &mut S,
    ) {
        while let [first, rest @ ..] = *changes
            && first.index <= u32::from(index)
        {
            *changes = rest;
            if first.index == u32::from(index) {
                let (leaf, _) = self.leaves[usize::from(index)];
                return leaf.tell(&document[first.start as usize..first.end as usize], sink);
            }
        }
        let (leaf, Place { start, end }) = self.leaves[usize::from(index)];
        leaf.tell(&self.bytes[start.into()..end.into()], sink);
    }

    /// Whether a document begins with a whole one that differs from this in values only: then these are `changes`.
    fn compare(&self, document: &[u8], changes: &mut Vec<Change>) -> bool {
        changes.clear();
        !self.bytes.is_empty() && self.changes(document, changes).is_some()
    }

    fn changes(&self, document: &[u8], changes: &mut Vec<Change>) -> Option<()> {
        let mut leaves = self.leaves.iter().zip(0..);
        let (mut here, mut there) = (0, 0);
        loop {
            let same = alike(&self.bytes[here..], &document[there..]);
            here += same;
            there += same;
            if here == self.bytes.len() {
                return Some(());
            }
            let ((leaf, place), index) =
                leaves.find(|((_, place), _)| usize::from(place.end) >= here)?;
            let start = there - here.checked_sub(usize::from(place.start))?;
            there = start + leaf.end(&document[start..])?;
            here = usize::from(place.end);
            if changes.len() == CHANGES {
                return None;
            }
            let (start, end) = (u32::try_from(start).ok()?, u32::try_from(there).ok()?);
            changes.push(Change { index, start, end });
        }
    }
}

/// How many bytes both begin with.
fn alike(a: &[u8], b: &[u8]) -> usize {
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
