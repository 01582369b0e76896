//! Parsed Rust source: its module, its imports, and the other facts that the rules need. Tests are left out.

use std::path::Path;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Attribute, Item};

/// A path that a source names: `crate::state::Shared` is `["state", "Shared"]`, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
    /// Whether this is a `pub use`, so that others find the item here.
    pub(super) is_public: bool,
}

/// A file without its tests.
pub(super) struct Source {
    /// Path of the file, relative to the root of the checkout.
    pub(super) name: String,
    /// Module of the file: `["datapath", "cut"]`. Empty for the root of a crate.
    pub(super) module: Vec<String>,
    /// Attributes of the file: its header among them.
    pub(super) header: Vec<Attribute>,
    pub(super) items: Vec<Item>,
    pub(super) imports: Vec<Import>,
}

impl Source {
    /// Reads `text`, the file `name` below the folder `root` of its crate's sources.
    pub(super) fn read(name: &str, root: &str, text: &str) -> Result<Self> {
        let file = syn::parse_file(text).with_context(|| format!("{name} is no Rust source"))?;
        let module = module(name, root);
        let mut items = Vec::new();
        keep(file.items, &mut items);
        let mut imports = Vec::new();
        for item in &items {
            let is_public = matches!(item, Item::Use(item) if !matches!(item.vis, syn::Visibility::Inherited));
            let from = imports.len();
            paths(&module, item.to_token_stream(), &mut imports);
            for import in &mut imports[from..] {
                import.is_public = is_public;
            }
        }
        Ok(Self {
            name: name.to_owned(),
            module,
            header: file.attrs,
            items,
            imports,
        })
    }
}

/// Module of a file.
fn module(name: &str, root: &str) -> Vec<String> {
    let below = Path::new(name).strip_prefix(root).unwrap_or_else(|_| Path::new(name));
    let mut parts: Vec<String> = below
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if parts
        .last()
        .is_some_and(|last| last == "mod" || (parts.len() == 1 && (last == "lib" || last == "main")))
    {
        parts.pop();
    }
    parts
}

/// Keeps the items that are not for tests alone.
fn keep(from: Vec<Item>, into: &mut Vec<Item>) {
    into.extend(from.into_iter().filter(|item| !is_for_tests(attributes(item))));
}

/// Attributes of an item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether one of the attributes is `#[cfg(test)]`, also as one of several conditions of `all`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && {
            let text = attribute.meta.to_token_stream().to_string();
            text == "cfg (test)" || text.starts_with("cfg (all (test")
        }
    })
}

/// Finds the paths in tokens that begin with `crate` or `super`, in macros, too.
fn paths(module: &[String], tokens: TokenStream, found: &mut Vec<Import>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(ident) if (ident == "crate" || ident == "super") && is_separator(&tokens, at + 1) => {
                let mut prefix = module.to_vec();
                if ident == "crate" {
                    prefix.clear();
                } else {
                    prefix.pop();
                }
                at = path(prefix, &tokens, at + 3, found);
            }
            TokenTree::Group(group) => {
                paths(module, group.stream(), found);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Whether `::` is at index `at`.
fn is_separator(tokens: &[TokenTree], at: usize) -> bool {
    let is_colon = |at: usize| match tokens.get(at) {
        Some(TokenTree::Punct(punct)) if punct.as_char() == ':' => Some(punct.spacing()),
        _ => None,
    };
    is_colon(at) == Some(Spacing::Joint) && is_colon(at + 1).is_some()
}

/// Follows a path, whose beginning is known, from `at` on; a brace has several ends. Returns where it is over.
fn path(mut prefix: Vec<String>, tokens: &[TokenTree], mut at: usize, found: &mut Vec<Import>) -> usize {
    let mut line = 0;
    loop {
        match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => {
                line = ident.span().start().line;
                match ident.to_string().as_str() {
                    "super" => {
                        prefix.pop();
                    }
                    "self" => {}
                    name => prefix.push(name.to_owned()),
                }
                at += 1;
            }
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                for element in inner.split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',')) {
                    if !element.is_empty() {
                        path(prefix.clone(), element, 0, found);
                    }
                }
                return at + 1;
            }
            _ => break,
        }
        if !is_separator(tokens, at) {
            break;
        }
        at += 2;
    }
    if line != 0 {
        found.push(Import {
            path: prefix,
            line,
            is_public: false,
        });
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(name: &str, text: &str) -> Vec<(String, usize)> {
        let source = Source::read(name, "x/src", text).unwrap();
        let shown = |import: &Import| (import.path.join("::"), import.line);
        source.imports.iter().map(shown).collect()
    }

    #[test]
    fn modules_are_named_by_their_files() {
        for (name, expected) in [
            ("x/src/lib.rs", ""),
            ("x/src/main.rs", ""),
            ("x/src/a.rs", "a"),
            ("x/src/a/mod.rs", "a"),
            ("x/src/a/b.rs", "a::b"),
            ("x/src/a/main.rs", "a::main"),
        ] {
            assert_eq!(module(name, "x/src").join("::"), expected);
        }
    }

    #[test]
    fn imports_are_found_wherever_they_stand() {
        let text = "use crate::a::{b, c::{self, D}, super_e};\nuse super::f::G;\n\
                    fn x() { crate::h::i(); log!(\"{}\", super::super::J); let _ = super::K::new(); }\n";
        let found = imports("x/src/p/q/r.rs", text);
        let expected = [
            ("a::b", 1),
            ("a::c", 1),
            ("a::c::D", 1),
            ("a::super_e", 1),
            ("p::q::f::G", 2),
            ("h::i", 3),
            ("p::J", 3),
            ("p::q::K::new", 3),
        ];
        assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
    }

    #[test]
    fn tests_comments_and_strings_import_nothing() {
        let text = "// use crate::a;\nconst X: &str = \"crate::b\";\n#[cfg(test)]\nmod tests { use crate::c; }\n\
                    #[cfg(all(test, unix))]\nuse crate::d;\n#[cfg(unix)]\nuse crate::e;\n";
        assert_eq!(imports("x/src/a.rs", text), [("e".to_owned(), 8)]);
    }
}
