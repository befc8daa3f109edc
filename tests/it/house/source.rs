//! Which paths the files under `src/` name outside of their tests.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

/// A file and what it names.
#[derive(Default)]
pub struct Source {
    /// Its path from the repository's root.
    pub path: String,
    /// The names that lead to it from the crate's root.
    module: Vec<String>,
    children: Vec<String>,
    named: Vec<Named>,
    /// The paths that its imports give a name.
    imported: BTreeMap<String, Vec<String>>,
}

struct Named {
    words: Vec<String>,
    is_reexport: bool,
}

/// Every file that the library or a program is made of, but for those of tests.
pub fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    read("src/lib.rs", Vec::new(), &mut found);
    assert!(found.len() > 50, "src/ was not read");
    read("src/main.rs", vec!["main".into()], &mut found);
    found
}

fn read(path: &str, module: Vec<String>, found: &mut Vec<Source>) {
    let text = std::fs::read_to_string(path).unwrap();
    let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut source = Source {
        path: path.to_owned(),
        module,
        ..Source::default()
    };
    source.visit_file(&file);
    for child in &source.children {
        let module = [&source.module[..], std::slice::from_ref(child)].concat();
        read(&format!("src/{}.rs", module.join("/")), module, found);
    }
    found.push(source);
}

impl Source {
    /// The room it belongs to.
    pub fn room(&self) -> &str {
        self.module.first().map_or("lib", String::as_str)
    }

    /// The rooms that it names, and those of `crates`.
    pub fn rooms(&self, crates: &[&str]) -> impl Iterator<Item = String> {
        self.named.iter().filter_map(move |Named { words, .. }| {
            let outside = crates.contains(&&*words[0]).then(|| words[0].clone());
            match self.inside(words) {
                Some(path) => path.into_iter().next(),
                None => outside,
            }
        })
    }

    /// The path from this crate's root, if it leads into this crate.
    fn inside(&self, words: &[String]) -> Option<Vec<String>> {
        let ups = words.iter().take_while(|word| *word == "super").count();
        let (base, rest) = match words[0].as_str() {
            "crate" | "queuescope" => (0, &words[1..]),
            "super" => (self.module.len() - ups, &words[ups..]),
            "self" => (self.module.len(), &words[1..]),
            child if self.children.iter().any(|name| name == child) => (self.module.len(), words),
            name => {
                let words_of = self.imported.get(name).filter(|of| of[0] != name)?;
                return self.inside(&[words_of, &words[1..]].concat());
            }
        };
        Some([&self.module[..base], rest].concat())
    }

    /// The leaves of an import's tree.
    fn import(&mut self, tree: &syn::UseTree, mut words: Vec<String>, is_reexport: bool) {
        match tree {
            syn::UseTree::Path(step) => {
                words.push(step.ident.to_string());
                self.import(&step.tree, words, is_reexport);
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, words.clone(), is_reexport);
                }
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                words.push(ident.to_string());
                self.imported.insert(ident.to_string(), words.clone());
                self.named(words, is_reexport);
            }
            syn::UseTree::Glob(_) => self.named(words, false),
        }
    }

    fn named(&mut self, words: Vec<String>, is_reexport: bool) {
        self.named.push(Named { words, is_reexport });
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let is_for_tests = |attribute: &syn::Attribute| {
            let test = attribute.parse_args::<syn::Ident>();
            attribute.path().is_ident("cfg") && test.is_ok_and(|word| word == "test")
        };
        if !module.attrs.iter().any(is_for_tests) {
            let name = &module.ident;
            assert!(module.content.is_none(), "{name} has a file of its own");
            self.children.push(module.ident.to_string());
        }
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        let is_reexport = !matches!(import.vis, syn::Visibility::Inherited);
        self.import(&import.tree, Vec::new(), is_reexport);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words = path.segments.iter().map(|word| word.ident.to_string());
        self.named(words.collect(), false);
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    /// Macros whose words are no expressions stay unread: what they name is imported.
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let list = syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        for value in called.parse_body_with(list).iter().flatten() {
            self.visit_expr(value);
        }
    }
}

/// Which files each file uses. A file uses another when it names something of it, in a path or by an import. No use are
/// `mod child;`, `pub use child::Name` as long as the file itself does not say `Name` (who imports that name uses the file
/// that gives it on), and what a child names of the modules that hold it.
pub fn uses(sources: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let of_module = sources.iter().map(|source| (&source.module[..], source));
    let of_module: BTreeMap<&[String], &Source> = of_module.collect();
    let uses_of = |source: &Source| {
        let named = source.named.iter().filter(|named| !named.is_reexport);
        let paths = named.filter_map(|named| source.inside(&named.words));
        let used = paths.filter_map(|path| {
            let mut shorter = (1..=path.len()).rev();
            shorter.find_map(|end| of_module.get(&path[..end]).copied())
        });
        let used = used.filter(|used| !source.module.starts_with(&used.module));
        used.map(|used| used.path.as_str()).collect()
    };
    let all = sources.iter();
    all.map(|source| (&*source.path, uses_of(source))).collect()
}
