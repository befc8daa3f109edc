//! Shards of a schedule, for several generators that send one load together.

use std::fmt;
use std::str::FromStr;

/// One of `count` generators that share a schedule; it sends every `count`-th request (or conversation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 0.
    pub index: usize,
    /// The number of shards.
    pub count: usize,
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
    /// In the form that is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}
