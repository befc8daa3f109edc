//! The KV cache: so many tokens, held by requests or by the prefix cache.

use super::event::Prompt;
use super::radix::{Node, Radix};

/// Who holds how much. `private + cache.tokens()` is never over the budget.
#[derive(Debug)]
pub(super) struct Memory {
    budget: u64,
    /// Tokens that one request each holds.
    private: u64,
    cache: Radix,
    is_cached: bool,
}

/// What one request holds.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// The end of the prefix that it shares and locks.
    prefix: Option<Node>,
    shared: u64,
    private: u64,
}

impl Memory {
    pub(super) fn new(budget: u64, is_cached: bool) -> Memory {
        Memory {
            budget,
            private: 0,
            cache: Radix::new(),
            is_cached,
        }
    }

    /// Tokens that can be had, if need be by eviction.
    pub(super) fn available(&self) -> u64 {
        self.budget - self.private - self.cache.locked()
    }

    /// Tokens that requests hold.
    pub(super) fn used(&self) -> u64 {
        self.private + self.cache.locked()
    }

    /// Tokens that only the prefix cache holds.
    pub(super) fn evictable(&self) -> u64 {
        self.cache.tokens() - self.cache.locked()
    }

    /// Locks what is cached of the first `most` tokens of `prompt`. What only a count says is cached is in nobody's room.
    pub(super) fn share(&mut self, prompt: &Prompt, most: u64) -> Hold {
        if !self.is_cached {
            return Hold::default();
        }
        let tokens = match prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Counted { cached, .. } => {
                return Hold {
                    shared: u64::from(*cached).min(most),
                    ..Hold::default()
                };
            }
        };
        let (node, shared) = self.cache.find(&tokens[..most as usize]);
        self.cache.lock(node);
        Hold {
            prefix: Some(node),
            shared: shared as u64,
            private: 0,
        }
    }

    /// Gives `hold` so many tokens more. The caller has asked whether they are [`Memory::available`].
    pub(super) fn take(&mut self, hold: &mut Hold, tokens: u64) {
        self.private += tokens;
        hold.private += tokens;
        let over = (self.private + self.cache.tokens()).saturating_sub(self.budget);
        self.cache.evict(over);
    }

    /// Puts the prompt that `hold` has computed into the prefix cache.
    pub(super) fn keep(&mut self, hold: &mut Hold, prompt: &Prompt) {
        let Prompt::Tokens(prompt) = prompt else {
            return;
        };
        let length = prompt.len() as u64;
        if !self.is_cached || hold.shared == length {
            return;
        }
        // First out of the request's own, then into the tree: what another one has put there meanwhile is
        // held once.
        let computed = length - hold.shared;
        self.private -= computed;
        hold.private -= computed;
        let node = self.cache.insert(prompt);
        self.cache.lock(node);
        self.unlock(hold.prefix.replace(node));
        hold.shared = length;
    }

    /// Takes everything back.
    pub(super) fn release(&mut self, hold: Hold) {
        self.private -= hold.private;
        self.unlock(hold.prefix);
    }

    /// Empties the prefix cache of all that no request holds.
    pub(super) fn flush(&mut self) {
        self.cache.evict(u64::MAX);
    }

    fn unlock(&mut self, node: Option<Node>) {
        if let Some(node) = node {
            self.cache.unlock(node);
        }
    }
}

impl Hold {
    /// Tokens found in the prefix cache, or put there since.
    pub(super) fn shared(&self) -> u64 {
        self.shared
    }

    /// All of the request's tokens that are in the KV cache.
    pub(super) fn tokens(&self) -> u64 {
        self.shared + self.private
    }
}
