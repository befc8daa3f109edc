//! Documents of a stream are alike: from one to the next, a few values change and all else is the same, byte by byte.
//! So one that has been scanned whole is kept, and those after it are compared with it: only where the two part is
//! anything scanned. Up to there both were read alike, so it is within, or at the end of, the same value; behind it
//! both are read alike again. Whatever else is different, a scan from the document's start finds out.

use std::ops::Range;

use super::leaf::Leaf;
use super::sink::Sink;
use crate::request::field::Field;

/// The longest document that is kept, bytes.
const LONGEST: usize = 4096;
/// The most values that may have changed.
const CHANGES: usize = 16;

/// A document, and what a scan told of it.
#[derive(Debug, Default)]
pub struct Template {
    bytes: Vec<u8>,
    leaves: Vec<(Leaf, Place)>,
    told: Vec<Told>,
    is_recording: bool,
}

#[derive(Clone, Copy, Debug)]
enum Told {
    Open(Field),
    Close(Field),
    /// By its index.
    Leaf(u8),
}

/// From where to where in the document that is kept; small, since every stream has one.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u16,
    end: u16,
}

/// The values that are others in a document, by index and place there.
struct Changes {
    list: [(usize, Range<usize>); CHANGES],
    len: usize,
}

impl Template {
    /// Whether `document` begins with a whole one that differs from this in values only; then tells of it.
    pub fn repeats(&self, document: &[u8], sink: &mut impl Sink) -> bool {
        let Some(changes) = self.changes(document) else {
            return false;
        };
        let mut changes = changes.list[..changes.len].iter();
        let mut change = changes.next();
        for told in &self.told {
            let index = match *told {
                Told::Open(field) => {
                    sink.open(field);
                    continue;
                }
                Told::Close(field) => {
                    sink.close(field);
                    continue;
                }
                Told::Leaf(index) => usize::from(index),
            };
            while change.is_some_and(|(changed, _)| *changed < index) {
                change = changes.next();
            }
            let (leaf, here) = self.leaves[index];
            let value = match change {
                Some((changed, there)) if *changed == index => &document[there.clone()],
                _ => &self.bytes[here.range()],
            };
            leaf.tell(value, sink);
        }
        true
    }

    fn changes(&self, document: &[u8]) -> Option<Changes> {
        let mut changes = Changes {
            list: [const { (0, 0..0) }; CHANGES],
            len: 0,
        };
        let mut leaves = self.leaves.iter().enumerate();
        let (mut here, mut there) = (0, 0);
        loop {
            let same = alike(&self.bytes[here..], &document[there..]);
            here += same;
            there += same;
            if here == self.bytes.len() {
                return (here > 0).then_some(changes);
            }
            let (index, (leaf, place)) =
                leaves.find(|(_, (_, place))| usize::from(place.end) >= here)?;
            let start = there - here.checked_sub(usize::from(place.start))?;
            let end = start + leaf.end(&document[start..])?;
            *changes.list.get_mut(changes.len)? = (index, start..end);
            changes.len += 1;
            here = usize::from(place.end);
            there = end;
        }
    }

    /// A document begins that is to be scanned.
    pub fn begin(&mut self, bytes: &[u8]) {
        self.bytes.clear();
        self.leaves.clear();
        self.told.clear();
        self.is_recording = bytes.len() <= LONGEST && bytes.ends_with(b"}");
        if self.is_recording {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The piece is over that the document began with. It is kept if the document was the piece.
    pub fn end(&mut self, is_whole: bool) {
        if std::mem::take(&mut self.is_recording) && !is_whole {
            self.bytes.clear();
        }
    }

    /// The scan told of a container's begin.
    pub fn open(&mut self, field: Field) {
        if self.is_recording {
            self.told.push(Told::Open(field));
        }
    }

    /// The scan told of a container's end.
    pub fn close(&mut self, field: Field) {
        if self.is_recording {
            self.told.push(Told::Close(field));
        }
    }

    /// The scan found a value. Its ends are counted from the end of the document.
    pub fn leaf(&mut self, leaf: Leaf, start: usize, end: usize) {
        if !self.is_recording {
            return;
        }
        let place = |from_end: usize| u16::try_from(self.bytes.len() - from_end).ok();
        let index = u8::try_from(self.leaves.len()).ok();
        let (Some(start), Some(end), Some(index)) = (place(start), place(end), index) else {
            return self.end(false);
        };
        if leaf.is_told() {
            self.told.push(Told::Leaf(index));
        }
        self.leaves.push((leaf, Place { start, end }));
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
