//! Attribute of tests that need network namespaces: it is re-exported by `signalbox-lab`.

use proc_macro::{Group, TokenStream, TokenTree};

/// Makes a function a test that is skipped where no lab can be made. The test says SKIP with its name and the reason, or
/// fails under `REQUIRE_PRIVILEGED_TESTS=1`.
///
/// The argument is the function that is asked: it takes the test's name. Without, it is `crate::lab::privileged`.
///
/// # Panics
///
/// If the item is not a function with a body.
#[proc_macro_attribute]
pub fn lab_test(argument: TokenStream, item: TokenStream) -> TokenStream {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word.to_string() == "fn");
    let name = tokens
        .iter()
        .position(is_fn)
        .and_then(|at| tokens.get(at + 1))
        .map(ToString::to_string);
    let (Some(name), Some(TokenTree::Group(body))) = (name, tokens.pop()) else {
        panic!("a lab test is a function with a body");
    };
    let asked = if argument.is_empty() {
        "crate::lab::privileged".to_owned()
    } else {
        argument.to_string()
    };
    let mut statements: TokenStream = format!("if !{asked}({name:?}) {{ return; }}").parse().expect("Rust");
    statements.extend(body.stream());
    let mut test: TokenStream = "#[test]".parse().expect("Rust");
    test.extend(tokens);
    test.extend([TokenTree::Group(Group::new(body.delimiter(), statements))]);
    test
}
