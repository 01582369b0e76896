//! No text makes the parser panic, and a refusal always has a reason with a place.

use proptest::prelude::*;

use super::{EXAMPLE, parse};

/// Pieces of text with a meaning in YAML or in the schema.
const PIECES: [&str; 40] = [
    "\n",
    "\t",
    "  ",
    "- ",
    "? ",
    ": ",
    ", ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a ",
    "!!str ",
    "| \n",
    "> \n",
    "'",
    "\"",
    "\\",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "# ",
    "<<: ",
    "null",
    "~",
    "0",
    "-1",
    "99999999999999999999",
    "5s",
    "::/0",
    "[::]:80",
    "*:80",
    "/33",
    "\u{feff}",
    "é",
    "\u{0}",
    "\u{2028}",
    "east",
    "\r",
];

/// Change of a text: place (a fraction of the text), number of characters cut, piece put in.
type Change = (f64, usize, Option<usize>);

fn change(text: &mut Vec<char>, (place, cut, piece): Change) {
    let start = ((text.len() as f64 * place) as usize).min(text.len());
    let end = (start + cut).min(text.len());
    let piece = piece.and_then(|piece| PIECES.get(piece)).copied().unwrap_or_default();
    text.splice(start..end, piece.chars());
}

fn check(text: &str) {
    match parse(text) {
        Ok(parsed) => assert!(!parsed.model.listeners.is_empty()),
        Err(errors) => {
            assert!(errors.iter().len() > 0);
            let lines = text.split(['\n', '\r']).count() + 1;
            for error in errors.iter() {
                assert!((1..=lines).contains(&error.line) && error.column >= 1, "{error:?}");
                assert!(!error.to_string().contains('\n'), "{error:?}");
            }
            assert!(!errors.render().is_empty());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_bent_example_never_panics(
        changes in prop::collection::vec((0.0..1.0f64, 0..12usize, prop::option::of(0..PIECES.len())), 1..6),
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for one in changes {
            change(&mut text, one);
        }
        check(&text.into_iter().collect::<String>());
    }

    #[test]
    fn a_heap_of_pieces_never_panics(pieces in prop::collection::vec(0..PIECES.len(), 0..60)) {
        let text: String = pieces.iter().filter_map(|piece| PIECES.get(*piece)).copied().collect();
        check(&text);
    }

    #[test]
    fn any_text_never_panics(text in "\\PC{0,200}") {
        check(&text);
    }

    #[test]
    fn addresses_and_durations_never_panic(text in "[-0-9a-f:./\\[\\]*smh%]{0,40}") {
        let quoted = text.replace('"', "");
        check(&EXAMPLE.replace("10.1.0.1:3306", &quoted));
        check(&EXAMPLE.replace("interval: 5s", &format!("interval: \"{quoted}\"")));
    }
}
