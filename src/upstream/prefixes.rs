//! The beginnings of prompts that an upstream got: an estimate of what its prefix cache holds.

use std::collections::HashSet;

/// Hashes of the blocks of recent prompts. A block is in it only with all blocks before it in its prompt.
#[derive(Debug, Default)]
pub struct Prefixes {
    recent: HashSet<u64>,
    /// The blocks that were recent before. Those that are used again become recent again, the rest is dropped as a whole.
    old: HashSet<u64>,
}

/// The most recent blocks: with the old ones 8 MiB of text, some 2 million tokens.
const MAX_RECENT: usize = 32_768;

impl Prefixes {
    /// Returns how many blocks of a prompt, from its first on, are in here.
    pub fn shared(&self, blocks: &[u64]) -> usize {
        let holds = |block: &u64| self.recent.contains(block) || self.old.contains(block);
        blocks.partition_point(holds)
    }

    /// Adds the blocks of a prompt that the upstream got.
    pub fn insert(&mut self, blocks: &[u64]) {
        if self.recent.len() + blocks.len() > MAX_RECENT {
            self.old = std::mem::take(&mut self.recent);
        }
        self.recent.extend(blocks);
    }

    /// The number of blocks; those that have become recent again count twice.
    pub fn len(&self) -> usize {
        self.recent.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a prompt of a group: its first `same` are the group's.
    fn prompt(group: u64, same: u64, own: u64) -> Vec<u64> {
        let shared = (0..same).map(|at| group * 1_000_000 + at);
        let own = (same..128).map(|at| own * 1_000 + at);
        shared.chain(own).collect()
    }

    #[test]
    fn what_prompts_share_is_found_and_nothing_else() {
        let mut prefixes = Prefixes::default();
        assert_eq!(prefixes.shared(&prompt(1, 40, 7)), 0);
        prefixes.insert(&prompt(1, 40, 7));
        prefixes.insert(&prompt(2, 9, 8));
        assert_eq!(prefixes.shared(&prompt(1, 40, 7)), 128);
        assert_eq!(prefixes.shared(&prompt(1, 40, 9)), 40);
        assert_eq!(prefixes.shared(&prompt(2, 9, 9)), 9);
        assert_eq!(prefixes.shared(&prompt(3, 9, 9)), 0);
        assert_eq!(prefixes.shared(&[]), 0);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used_again() {
        let mut prefixes = Prefixes::default();
        let kept = prompt(1, 100, 999_999);
        for own in 1..4_000 {
            prefixes.insert(&prompt(own + 1, 20, own));
            if own % 100 == 0 {
                prefixes.insert(&kept);
            }
            assert!(prefixes.len() <= 2 * MAX_RECENT);
        }
        assert_eq!(prefixes.shared(&kept), 128);
        // So are the last ones; the first are dropped, whole.
        assert_eq!(prefixes.shared(&prompt(4_000, 20, 3_999)), 128);
        assert_eq!(prefixes.shared(&prompt(2, 20, 1)), 0);
    }
}
