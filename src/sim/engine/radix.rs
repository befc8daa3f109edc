//! The prefix cache: a radix tree over token ids that evicts its least recently used leaves first.

use std::collections::{BTreeSet, HashMap};

use slab::Slab;

/// The index of a node of the tree: the end of a prefix.
pub(super) type Node = usize;

/// The tree. It holds only token ids, so its size is bounded by the KV cache's capacity.
#[derive(Debug)]
pub(super) struct Radix {
    nodes: Slab<Edge>,
    /// Unlocked leaves, the least recently used first.
    leaves: BTreeSet<(u64, Node)>,
    /// The number of lookups so far, as a logical clock.
    uses: u64,
    /// The number of tokens held.
    pub(super) tokens: u64,
    /// The number of tokens on paths to locked nodes, which cannot be evicted.
    pub(super) locked: u64,
}

/// A node with the edge that leads to it.
#[derive(Debug, Default)]
struct Edge {
    parent: Node,
    tokens: Vec<u32>,
    /// By the first token of their edges.
    children: HashMap<u32, Node>,
    locks: u32,
    /// [`Radix::uses`] at its last use.
    used: u64,
}

/// The empty prefix: locking it does nothing.
pub(super) const ROOT: Node = 0;

impl Radix {
    pub(super) fn new() -> Radix {
        Radix {
            nodes: Slab::from_iter([(ROOT, Edge::default())]),
            leaves: BTreeSet::new(),
            uses: 0,
            tokens: 0,
            locked: 0,
        }
    }

    /// Finds the longest cached prefix of `tokens` and its length, and marks it as used.
    pub(super) fn find(&mut self, tokens: &[u32]) -> (Node, usize) {
        self.uses += 1;
        let (mut at, mut found) = (ROOT, 0);
        while let Some(first) = tokens.get(found)
            && let Some(child) = self.nodes[at].children.get(first).copied()
        {
            let edge = self.nodes[child].tokens.iter();
            let same = edge.zip(&tokens[found..]).take_while(|(a, b)| a == b);
            let same = same.count();
            found += same;
            at = if same < self.nodes[child].tokens.len() {
                self.split(child, same)
            } else {
                child
            };
            let edge = &mut self.nodes[at];
            let was_leaf = self.leaves.remove(&(edge.used, at));
            edge.used = self.uses;
            if was_leaf {
                self.leaves.insert((edge.used, at));
            }
            if at != child {
                break;
            }
        }
        (at, found)
    }

    /// Inserts `tokens`; returns the node where they end.
    pub(super) fn insert(&mut self, tokens: &[u32]) -> Node {
        let (parent, found) = self.find(tokens);
        let rest = &tokens[found..];
        let Some(first) = rest.first() else {
            return parent;
        };
        let leaf = self.nodes.insert(Edge {
            parent,
            tokens: rest.to_vec(),
            used: self.uses,
            ..Edge::default()
        });
        let parent_edge = &mut self.nodes[parent];
        parent_edge.children.insert(*first, leaf);
        self.leaves.remove(&(parent_edge.used, parent));
        self.leaves.insert((self.uses, leaf));
        self.tokens += rest.len() as u64;
        leaf
    }

    /// Protects the prefix that ends at `node` from eviction. Locks nest.
    pub(super) fn lock(&mut self, node: Node) {
        let mut at = node;
        while at != ROOT {
            let edge = &mut self.nodes[at];
            if edge.locks == 0 {
                self.locked += edge.tokens.len() as u64;
                self.leaves.remove(&(edge.used, at));
            }
            edge.locks += 1;
            at = edge.parent;
        }
    }

    /// Undoes one [`Radix::lock`].
    pub(super) fn unlock(&mut self, node: Node) {
        let mut at = node;
        while at != ROOT {
            let edge = &mut self.nodes[at];
            edge.locks -= 1;
            if edge.locks == 0 {
                self.locked -= edge.tokens.len() as u64;
                if edge.children.is_empty() {
                    self.leaves.insert((edge.used, at));
                }
            }
            at = edge.parent;
        }
    }

    /// Evicts whole leaves until `wanted` tokens are evicted or nothing is evictable.
    pub(super) fn evict(&mut self, wanted: u64) {
        let mut evicted = 0;
        while evicted < wanted
            && let Some((_, leaf)) = self.leaves.pop_first()
        {
            let edge = self.nodes.remove(leaf);
            evicted += edge.tokens.len() as u64;
            let parent_edge = &mut self.nodes[edge.parent];
            parent_edge.children.remove(&edge.tokens[0]);
            let parent = edge.parent;
            if parent != ROOT && parent_edge.children.is_empty() && parent_edge.locks == 0 {
                self.leaves.insert((parent_edge.used, parent));
            }
        }
        self.tokens -= evicted;
    }

    /// Splits the edge to `child` after `length` tokens; returns the new node in between.
    fn split(&mut self, child: Node, length: usize) -> Node {
        let edge = &mut self.nodes[child];
        let rest = edge.tokens.split_off(length);
        let tokens = std::mem::replace(&mut edge.tokens, rest);
        let (parent, locks, used) = (edge.parent, edge.locks, edge.used);
        let (first, next) = (tokens[0], edge.tokens[0]);
        let upper = self.nodes.insert(Edge {
            parent,
            tokens,
            children: HashMap::from([(next, child)]),
            locks,
            used,
        });
        self.nodes[child].parent = upper;
        self.nodes[parent].children.insert(first, upper);
        upper
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the tree with a plain set of prefixes: what is found, held and locked.
        #[test]
        fn it_holds_what_a_set_of_prefixes_would(
            steps in prop::collection::vec(
                (0_u8..4, prop::collection::vec(0_u32..3, 1..8)), 1..60),
        ) {
            let mut tree = Radix::new();
            let mut held: BTreeSet<Vec<u32>> = BTreeSet::new();
            let mut locks: Vec<(Node, Vec<u32>)> = Vec::new();
            for (what, tokens) in steps {
                match what {
                    0 => {
                        tree.insert(&tokens);
                        held.extend((1..=tokens.len()).map(|to| tokens[..to].to_vec()));
                    }
                    1 => {
                        let (node, found) = tree.find(&tokens);
                        tree.lock(node);
                        locks.push((node, tokens[..found].to_vec()));
                    }
                    2 => if let Some((node, _)) = locks.pop() { tree.unlock(node) },
                    _ => {
                        tree.evict(2);
                        held.retain(|prefix| tree.find(prefix).1 == prefix.len());
                    }
                }
                let known = (0..=tokens.len()).rev().find(|to| *to == 0 || held.contains(&tokens[..*to]));
                prop_assert_eq!(Some(tree.find(&tokens).1), known);
                prop_assert_eq!(tree.tokens, held.len() as u64);
                let kept: BTreeSet<&[u32]> =
                    locks.iter().flat_map(|(_, p)| (1..=p.len()).map(|to| &p[..to])).collect();
                prop_assert_eq!(tree.locked, kept.len() as u64);
                prop_assert!(kept.iter().all(|prefix| held.contains(*prefix)));
            }
            locks.into_iter().for_each(|(node, _)| tree.unlock(node));
            tree.evict(u64::MAX);
            prop_assert_eq!((tree.tokens, tree.nodes.len()), (0, 1));
        }
    }
}
