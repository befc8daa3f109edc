//! The KV cache: a number of tokens, held by requests or by the prefix cache.

use super::Prompt;
use super::radix::{Node, ROOT, Radix};

/// The use of the KV cache. `private + cache.tokens` never exceeds `capacity`.
#[derive(Debug)]
pub(super) struct Memory {
    capacity: u64,
    /// Tokens held by single requests, outside the prefix cache.
    private: u64,
    cache: Radix,
    has_cache: bool,
}

/// The tokens that one request holds.
#[derive(Debug, Default)]
pub(super) struct Allocation {
    /// The end of its locked prefix in the prefix cache: by default the root, which is never evicted.
    prefix: Node,
    /// Tokens in the prefix cache: found there, or inserted since.
    pub(super) shared: u64,
    private: u64,
}

impl Memory {
    pub(super) fn new(capacity: u64, has_cache: bool) -> Memory {
        Memory {
            capacity,
            private: 0,
            cache: Radix::new(),
            has_cache,
        }
    }

    /// Tokens that are free or can be freed by eviction.
    pub(super) fn available(&self) -> u64 {
        self.capacity - self.private - self.cache.locked
    }

    /// Tokens that requests hold.
    pub(super) fn used(&self) -> u64 {
        self.private + self.cache.locked
    }

    /// Tokens that only the prefix cache holds.
    pub(super) fn evictable(&self) -> u64 {
        self.cache.tokens - self.cache.locked
    }

    /// Locks the cached prefix of the first `max` tokens of `prompt`. Cached tokens of a [`Prompt::Counted`] take no memory.
    pub(super) fn lock_prefix(&mut self, prompt: &Prompt, max: u64) -> Allocation {
        let (prefix, shared) = match prompt {
            _ if !self.has_cache => (ROOT, 0),
            Prompt::Tokens(tokens) => self.cache.find(&tokens[..max as usize]),
            Prompt::Counted { cached, .. } => (ROOT, u64::from(*cached).min(max) as usize),
        };
        self.cache.lock(prefix);
        Allocation {
            prefix,
            shared: shared as u64,
            private: 0,
        }
    }

    /// Adds `tokens`, of which the caller has checked that they are [`Memory::available`].
    pub(super) fn allocate(&mut self, allocation: &mut Allocation, tokens: u64) {
        self.private += tokens;
        allocation.private += tokens;
        let excess = (self.private + self.cache.tokens).saturating_sub(self.capacity);
        self.cache.evict(excess);
    }

    /// Puts a computed prompt into the prefix cache.
    pub(super) fn cache(&mut self, allocation: &mut Allocation, prompt: &Prompt) {
        let Prompt::Tokens(prompt) = prompt else {
            return;
        };
        let length = prompt.len() as u64;
        if !self.has_cache || allocation.shared == length {
            return;
        }
        // First out of the private tokens: the tree holds what another request has inserted meanwhile only once.
        let computed = length - allocation.shared;
        self.private -= computed;
        allocation.private -= computed;
        let node = self.cache.insert(prompt);
        self.cache.lock(node);
        self.cache
            .unlock(std::mem::replace(&mut allocation.prefix, node));
        allocation.shared = length;
    }

    /// Frees everything that a request holds.
    pub(super) fn release(&mut self, allocation: Allocation) {
        self.private -= allocation.private;
        self.cache.unlock(allocation.prefix);
    }

    /// Evicts everything from the prefix cache that no request holds.
    pub(super) fn flush(&mut self) {
        self.cache.evict(u64::MAX);
    }
}

impl Allocation {
    /// All of the request's tokens that are in the KV cache.
    pub(super) fn tokens(&self) -> u64 {
        self.shared + self.private
    }
}
