//! Documents of a stream are alike: from one to the next, a few values change and all else is the same, byte by byte.
//! So one that has been scanned whole is kept, and those after it are compared with it: only where the two part is
//! anything scanned. Up to there both were read alike, so it is within, or at the end of, the same value; behind it
//! both are read alike again. Whatever else is different, a scan from the document's start finds out.
//!
//! Streams are alike, too: what was kept of one is tried for the documents of others on the same thread, be it the first
//! or the last kind of a stream's.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
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

thread_local! {
    /// The newest first.
    static KNOWN: RefCell<VecDeque<Arc<Known>>> = const { RefCell::new(VecDeque::new()) };
}

/// What the documents of a stream are compared with.
#[derive(Debug, Default)]
pub struct Template {
    /// The one that was scanned last, or was like another twice.
    own: Known,
    /// Of another stream or another kind, and what the last one was like.
    other: Option<Arc<Known>>,
    /// Values that the sink keeps, but not as they are there: a bit each, by index.
    moved: u128,
    is_recording: bool,
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
    /// The same, of one that the sink keeps, and of those that follow up to another.
    Kept(u8, u8),
}

/// From where to where in the document that is kept; small, since every stream has one.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u16,
    end: u16,
}

/// The values that are others in a document, by index and place there.
struct Changes {
    list: [(u32, u32, u32); CHANGES],
    len: usize,
    /// A bit each, by index.
    bits: u128,
    /// Where the document ends.
    end: usize,
}

impl Template {
    /// Whether `document`, to be scanned by `root`, begins with a whole one that differs from one before in values only;
    /// then tells of it.
    pub fn repeats<S: Sink>(&mut self, root: &'static Rule, document: &[u8], sink: &mut S) -> bool {
        let present = self.other.as_deref().unwrap_or(&self.own);
        if let Some(changes) = present.changes(document) {
            sink.begin(true);
            present.tell(document, &changes, &mut self.moved, sink);
            if let Some(other) = self.other.take() {
                match self.own.take_on(&other, &changes, document) {
                    Some(()) => self.moved = 0,
                    None => self.other = Some(other),
                }
            }
            return true;
        }
        let other = KNOWN.with_borrow(|all| {
            let same_root = |known: &&Arc<Known>| known.root.is_some_and(|of| ptr::eq(of, root));
            let mut of_root = all.iter().filter(same_root);
            of_root.find_map(|known| Some((known.clone(), known.changes(document)?)))
        });
        let Some((known, changes)) = other else {
            return false;
        };
        // The sink has none of its values.
        self.moved = u128::MAX;
        sink.begin(false);
        known.tell(document, &changes, &mut self.moved, sink);
        self.other = Some(known);
        true
    }

    /// A document begins that is to be scanned.
    pub fn begin(&mut self, root: &'static Rule, bytes: &[u8]) {
        (self.other, self.moved) = (None, 0);
        self.own.clear();
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
        if !is_whole {
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
        if self.own.told.contains(&Told::Open(field)) {
            // Of two alike the sink would keep values of both.
            return self.end(false);
        }
        if self.is_recording {
            self.own.told.push(Told::Open(field));
        }
    }

    /// The scan told of a container's end.
    pub fn close(&mut self, field: Field) {
        if self.is_recording {
            self.own.told.push(Told::Close(field));
        }
    }

    /// The scan found a value. Its ends are counted from the end of the document.
    pub fn leaf<S: Sink>(&mut self, leaf: Leaf, start: usize, end: usize) {
        if !self.is_recording {
            return;
        }
        let known = &mut self.own;
        let is_kept = matches!(leaf, Leaf::Bare(Some(field)) if S::keeps(field));
        if is_kept && known.leaves.iter().any(|(other, _)| *other == leaf) {
            return self.end(false);
        }
        let place = |from_end: usize| u16::try_from(known.bytes.len() - from_end).ok();
        let index = u8::try_from(known.leaves.len()).ok();
        let (Some(start), Some(end), Some(index)) = (place(start), place(end), index) else {
            return self.end(false);
        };
        if is_kept && index < 128 {
            match known.told.last_mut() {
                Some(Told::Kept(_, last)) => *last = index,
                _ => known.told.push(Told::Kept(index, index)),
            }
        } else if leaf.is_told() {
            known.told.push(Told::Leaf(index));
        }
        known.leaves.push((leaf, Place { start, end }));
    }
}

impl Known {
    fn clear(&mut self) {
        self.bytes.clear();
        self.leaves.clear();
        self.told.clear();
    }

    /// Becomes a document that differs from `other` by these changes, if it is short enough: the next differs less from it.
    fn take_on(&mut self, other: &Known, changes: &Changes, document: &[u8]) -> Option<()> {
        let bytes = document
            .get(..changes.end)
            .filter(|bytes| bytes.len() <= LONGEST)?;
        self.clear();
        // Room for another kind.
        if self.bytes.capacity() < bytes.len() {
            self.bytes.reserve(bytes.len() + bytes.len() / 2);
        }
        self.leaves.reserve_exact(other.leaves.len());
        self.told.reserve_exact(other.told.len());
        self.root = other.root;
        self.told.extend_from_slice(&other.told);
        let mut list = changes.list[..changes.len].iter().peekable();
        let mut by = 0;
        for (index, (leaf, place)) in other.leaves.iter().enumerate() {
            let (mut start, mut end) = (place.start, place.end);
            if let Some(change) = list.next_if(|(changed, ..)| *changed as usize == index) {
                (start, end) = (u16::try_from(change.1).ok()?, u16::try_from(change.2).ok()?);
                by = i32::from(end) - i32::from(place.end);
            } else {
                start = u16::try_from(i32::from(start) + by).ok()?;
                end = u16::try_from(i32::from(end) + by).ok()?;
            }
            self.leaves.push((*leaf, Place { start, end }));
        }
        self.bytes.extend_from_slice(bytes);
        Some(())
    }

    /// Tells of a document with these changes; of what the sink keeps, only what is not, or was not, as it is here.
    fn tell<S: Sink>(&self, document: &[u8], changes: &Changes, moved: &mut u128, sink: &mut S) {
        let mut list = changes.list[..changes.len].iter();
        let mut tell = |index: usize, sink: &mut S| {
            let (leaf, here) = self.leaves[index];
            let change = list
                .as_slice()
                .iter()
                .position(|(at, ..)| *at as usize >= index);
            list.by_ref().take(change.unwrap_or(0)).for_each(drop);
            match list.as_slice().first() {
                Some((at, start, end)) if *at as usize == index => {
                    leaf.tell(&document[*start as usize..*end as usize], sink);
                }
                _ => leaf.tell(&self.bytes[here.range()], sink),
            }
        };
        for told in &self.told {
            match *told {
                Told::Open(field) => sink.open(field),
                Told::Close(field) => sink.close(field),
                Told::Leaf(index) => tell(index.into(), sink),
                Told::Kept(first, last) => {
                    let all = u128::MAX >> (127 - (last - first)) << first;
                    let mut others = (*moved | changes.bits) & all;
                    *moved = *moved & !all | changes.bits & all;
                    while others != 0 {
                        tell(others.trailing_zeros() as usize, sink);
                        others &= others - 1;
                    }
                }
            }
        }
    }

    fn changes(&self, document: &[u8]) -> Option<Changes> {
        let mut changes = Changes {
            list: [(0, 0, 0); CHANGES],
            len: 0,
            bits: 0,
            end: 0,
        };
        let mut leaves = self.leaves.iter().enumerate();
        let (mut here, mut there) = (0, 0);
        loop {
            let same = alike(&self.bytes[here..], &document[there..]);
            here += same;
            there += same;
            if here == self.bytes.len() {
                changes.end = there;
                return (here > 0).then_some(changes);
            }
            let (index, (leaf, place)) =
                leaves.find(|(_, (_, place))| usize::from(place.end) >= here)?;
            let start = there - here.checked_sub(usize::from(place.start))?;
            let end = start + leaf.end(&document[start..])?;
            let of = |at: usize| u32::try_from(at).ok();
            *changes.list.get_mut(changes.len)? = (of(index)?, of(start)?, of(end)?);
            changes.len += 1;
            changes.bits |= 1_u128.checked_shl(of(index)?).unwrap_or(0);
            here = usize::from(place.end);
            there = end;
        }
    }
}

impl Place {
    fn range(self) -> Range<usize> {
        self.start.into()..self.end.into()
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
