//! A part of a schedule: several generators send one load.

use std::fmt;
use std::str::FromStr;

/// One of `count` generators that share a schedule: every `count`-th request (or conversation) is its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    /// How many there are.
    pub fn count(self) -> usize {
        self.count
    }

    /// Whether the request at this place of the whole schedule is its own.
    pub fn holds(self, place: usize) -> bool {
        place % self.count == self.index
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let shard = parts.filter(|(index, count)| index < count);
        shard
            .map(|(index, count)| Shard { index, count })
            .ok_or_else(|| "must be I/N, I from 0 to N - 1, such as 0/4".to_owned())
    }
}

impl fmt::Display for Shard {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}
