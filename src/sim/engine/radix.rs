//! The prefix cache: a radix tree over token ids, of which the least recently used leaves go first.

use std::collections::{BTreeSet, HashMap};

/// A place in the tree: the end of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node(usize);

/// The tree. It holds nothing but the ids, so its memory is bounded by the tokens it is let hold.
#[derive(Debug)]
pub(super) struct Radix {
    nodes: Vec<Edge>,
    unused: Vec<Node>,
    /// Leaves that nobody locks, the least recently used first.
    leaves: BTreeSet<(u64, Node)>,
    uses: u64,
    tokens: u64,
    locked: u64,
}

/// A node with the edge that leads to it.
#[derive(Debug, Default)]
struct Edge {
    parent: usize,
    tokens: Vec<u32>,
    /// By the first token of their edges.
    children: HashMap<u32, Node>,
    locks: u32,
    used: u64,
}

const ROOT: Node = Node(0);

impl Radix {
    pub(super) fn new() -> Radix {
        Radix {
            nodes: vec![Edge::default()],
            unused: Vec::new(),
            leaves: BTreeSet::new(),
            uses: 0,
            tokens: 0,
            locked: 0,
        }
    }

    /// Tokens held.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Tokens on the way to locked nodes: they cannot be evicted.
    pub(super) fn locked(&self) -> u64 {
        self.locked
    }

    /// The longest beginning of `tokens` that is held, and its length; it counts as used.
    pub(super) fn find(&mut self, tokens: &[u32]) -> (Node, usize) {
        self.uses += 1;
        let (mut at, mut found) = (ROOT, 0);
        while let Some(first) = tokens.get(found) {
            let Some(child) = self.nodes[at.0].children.get(first).copied() else {
                break;
            };
            let edge = self.nodes[child.0].tokens.iter();
            let same = edge.zip(&tokens[found..]).take_while(|(a, b)| a == b);
            let same = same.count();
            found += same;
            at = if same < self.nodes[child.0].tokens.len() {
                self.split(child, same)
            } else {
                child
            };
            self.touch(at);
            if at != child {
                break;
            }
        }
        (at, found)
    }

    /// Takes `tokens` in; returns where they end.
    pub(super) fn insert(&mut self, tokens: &[u32]) -> Node {
        let (parent, found) = self.find(tokens);
        let rest = &tokens[found..];
        let Some(first) = rest.first() else {
            return parent;
        };
        let leaf = self.add(Edge {
            parent: parent.0,
            tokens: rest.to_vec(),
            used: self.uses,
            ..Edge::default()
        });
        let above = &mut self.nodes[parent.0];
        above.children.insert(*first, leaf);
        self.leaves.remove(&(above.used, parent));
        self.leaves.insert((self.uses, leaf));
        self.tokens += rest.len() as u64;
        leaf
    }

    /// Keeps the prefix that ends at `node` from eviction, once more.
    pub(super) fn lock(&mut self, node: Node) {
        let mut at = node;
        while at != ROOT {
            let edge = &mut self.nodes[at.0];
            if edge.locks == 0 {
                self.locked += edge.tokens.len() as u64;
                self.leaves.remove(&(edge.used, at));
            }
            edge.locks += 1;
            at = Node(edge.parent);
        }
    }

    /// Takes one [`Radix::lock`] back.
    pub(super) fn unlock(&mut self, node: Node) {
        let mut at = node;
        while at != ROOT {
            let edge = &mut self.nodes[at.0];
            edge.locks -= 1;
            if edge.locks == 0 {
                self.locked -= edge.tokens.len() as u64;
                if edge.children.is_empty() {
                    self.leaves.insert((edge.used, at));
                }
            }
            at = Node(edge.parent);
        }
    }

    /// Evicts whole leaves until `wanted` tokens have gone or nothing can go.
    pub(super) fn evict(&mut self, wanted: u64) {
        let mut gone = 0;
        while gone < wanted {
            let Some((_, leaf)) = self.leaves.pop_first() else {
                break;
            };
            let edge = std::mem::take(&mut self.nodes[leaf.0]);
            self.unused.push(leaf);
            gone += edge.tokens.len() as u64;
            let above = &mut self.nodes[edge.parent];
            above.children.remove(&edge.tokens[0]);
            let parent = Node(edge.parent);
            if parent != ROOT && above.children.is_empty() && above.locks == 0 {
                self.leaves.insert((above.used, parent));
            }
        }
        self.tokens -= gone;
    }

    fn touch(&mut self, node: Node) {
        let edge = &mut self.nodes[node.0];
        let was_leaf = self.leaves.remove(&(edge.used, node));
        edge.used = self.uses;
        if was_leaf {
            self.leaves.insert((edge.used, node));
        }
    }

    /// Cuts the edge to `child` after `length` tokens; returns the new node in between.
    fn split(&mut self, child: Node, length: usize) -> Node {
        let edge = &mut self.nodes[child.0];
        let rest = edge.tokens.split_off(length);
        let tokens = std::mem::replace(&mut edge.tokens, rest);
        let (parent, locks, used) = (edge.parent, edge.locks, edge.used);
        let (first, next) = (tokens[0], edge.tokens[0]);
        let upper = self.add(Edge {
            parent,
            tokens,
            children: HashMap::from([(next, child)]),
            locks,
            used,
        });
        self.nodes[child.0].parent = upper.0;
        self.nodes[parent].children.insert(first, upper);
        upper
    }

    fn add(&mut self, edge: Edge) -> Node {
        if let Some(node) = self.unused.pop() {
            self.nodes[node.0] = edge;
            return node;
        }
        self.nodes.push(edge);
        Node(self.nodes.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Held against a plain list of prefixes: what is found, what is held, and what locks keep.
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
                prop_assert_eq!(tree.tokens(), held.len() as u64);
                let kept: BTreeSet<&[u32]> =
                    locks.iter().flat_map(|(_, p)| (1..=p.len()).map(|to| &p[..to])).collect();
                prop_assert_eq!(tree.locked(), kept.len() as u64);
                prop_assert!(kept.iter().all(|prefix| held.contains(*prefix)));
            }
            locks.into_iter().for_each(|(node, _)| tree.unlock(node));
            tree.evict(u64::MAX);
            prop_assert_eq!((tree.tokens(), tree.nodes.len() - tree.unused.len()), (0, 1));
        }
    }
}
