//! Rules for names and comments, as far as a program can check them.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Ident, Lit, Meta, Type};

use super::source::Source;

/// Endings of a constant duration's name.
const DURATIONS: [&str; 3] = ["_TIMEOUT", "_INTERVAL", "_TTL"];

/// Beginnings of a doc comment that leave out its subject, so that a reader who lands there by search has to guess.
const PRONOUNS: [&str; 5] = ["It ", "Those ", "The same", "What ", "Who "];

/// Finds the places where a source breaks the rules, each with its line.
pub(super) fn check(source: &Source) -> Vec<String> {
    let mut finder = Finder {
        name: &source.name,
        faults: Vec::new(),
        in_comment: false,
    };
    source
        .header
        .iter()
        .for_each(|attribute| finder.visit_attribute(attribute));
    finder.in_comment = false;
    source.items.iter().for_each(|item| finder.visit_item(item));
    finder.faults
}

struct Finder<'a> {
    name: &'a str,
    faults: Vec<String>,
    /// Whether the last attribute was a line of a doc comment, which this one continues.
    in_comment: bool,
}

impl Finder<'_> {
    fn constant(&mut self, name: &Ident, ty: &Type) {
        let text = name.to_string();
        let is_duration =
            matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Duration"));
        if is_duration && !DURATIONS.iter().any(|end| text.ends_with(end)) {
            let line = name.span().start().line;
            self.faults.push(format!(
                "{}:{line}: the duration {text} must be named for what it is: ..._TIMEOUT, ..._INTERVAL or ..._TTL",
                self.name
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constant(&item.ident, &item.ty);
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constant(&item.ident, &item.ty);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Some(text) = doc(attribute) else {
            self.in_comment = false;
            return;
        };
        let begins = !std::mem::replace(&mut self.in_comment, !text.trim().is_empty());
        let text = text.trim_start();
        if begins && PRONOUNS.iter().any(|pronoun| text.starts_with(pronoun)) {
            let line = attribute.span().start().line;
            self.faults.push(format!(
                "{}:{line}: a comment must begin with its subject, not with a pronoun: {text}",
                self.name
            ));
        }
    }

    fn visit_ident(&mut self, _: &'ast Ident) {
        self.in_comment = false;
    }
}

/// Text of a line of a doc comment.
fn doc(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(meta) = &attribute.meta else {
        return None;
    };
    match &meta.value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text), ..
        }) if meta.path.is_ident("doc") => Some(text.value()),
        _ => None,
    }
}

/// Types of one crate that share a name.
pub(super) fn doubles(sources: &[Source]) -> Vec<String> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        for item in &source.items {
            let name = match item {
                syn::Item::Struct(item) => &item.ident,
                syn::Item::Enum(item) => &item.ident,
                syn::Item::Trait(item) => &item.ident,
                syn::Item::Type(item) => &item.ident,
                syn::Item::Union(item) => &item.ident,
                _ => continue,
            };
            let at = format!("{}:{}", source.name, name.span().start().line);
            all.entry(name.to_token_stream().to_string()).or_default().push(at);
        }
    }
    let doubles = all.into_iter().filter(|(_, places)| places.len() > 1);
    doubles
        .map(|(name, places)| format!("{name} is the name of {} types: {}", places.len(), places.join(", ")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        check(&Source::read("x/src/a.rs", "x/src", text).unwrap())
    }

    #[test]
    fn durations_say_what_they_are() {
        assert_eq!(faults("const PATIENCE: Duration = X;").len(), 1);
        assert_eq!(faults("impl A { const REST: std::time::Duration = X; }").len(), 1);
        let good = "const A_TIMEOUT: Duration = X;\nconst B_INTERVAL: Duration = X;\nconst C_TTL: Duration = X;\nconst D: u64 = 1;";
        assert_eq!(faults(good), Vec::<String>::new());
    }

    #[test]
    fn comments_begin_with_what_they_are_about() {
        for bad in [
            "/// It has one more.\nfn f() {}",
            "//! x\n/// Those since.\nstruct A;",
            "//! What a shadow is.\n//! It is a flow.\nstruct A;",
            "struct A {\n    /// What a snapshot wants.\n    b: u8,\n}",
            "impl A {\n    /// Who is asked.\n    fn f() {}\n}",
            "enum A {\n    /// One.\n    B,\n    /// The same.\n    C,\n}",
        ] {
            assert_eq!(faults(bad).len(), 1, "{bad}");
        }
        let good = "/// A source's hosts.\n/// What they are is told by their cluster.\nfn f() {}\n// It is no doc comment.\n\
                    /// Items.\n///\n/// Iterators too.\nfn g() {}";
        assert_eq!(faults(good), Vec::<String>::new());
        assert!(faults("fn a() {}\n\n/// It.\n/// It has.\nfn f() {}").is_empty());
        assert!(faults("fn a() {}\n/// It has.\nfn f() {}")[0].starts_with("x/src/a.rs:2: "));
    }

    #[test]
    fn names_that_stand_for_two_types_are_found() {
        let read = |name: &str, text: &str| Source::read(name, "x/src", text).unwrap();
        let sources = [
            read(
                "x/src/a.rs",
                "struct A; enum B {}\n#[cfg(test)]\nmod tests { struct C; }",
            ),
            read("x/src/b.rs", "struct C;\ntrait B {}"),
        ];
        assert_eq!(
            doubles(&sources),
            ["B is the name of 2 types: x/src/a.rs:1, x/src/b.rs:2"]
        );
    }
}
