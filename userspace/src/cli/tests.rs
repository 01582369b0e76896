//! Commands that the pages show are commands of this program.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use super::*;

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = std::fs::read_dir(root.join("docs"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    docs.filter(is_page).chain([root.join("README.md")]).collect()
}

/// Lines of the console blocks of a page. One that ends in a backslash goes on in the next.
fn console_lines(text: &str) -> Vec<String> {
    let blocks = text
        .split("```console\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next());
    let joined = blocks.map(|block| block.replace("\\\n", " "));
    joined
        .flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Commands in the text of a page.
fn inline_code(text: &str) -> Vec<String> {
    let parts = text.split('`').skip(1).step_by(2);
    let parts = parts.map(|part| part.trim_end_matches(" OPTIONS"));
    parts
        .filter(|part| part.starts_with("signalbox "))
        .map(|part| part.replace('\n', " "))
        .collect()
}

/// Words of a command as a shell has them, as far as the pages need: quotes, and a comment at the end.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for c in line.chars() {
        match (quote, c) {
            (None, '#') if word.is_empty() => break,
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, ' ') => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            (_, c) => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// Commands of this program in a line: without `sudo` and a shell's variables before, up to a pipe, a file or `&&`.
fn commands(line: &str) -> Vec<Vec<String>> {
    let words = words(line);
    let parts = words.split(|word| matches!(word.as_str(), "|" | "&&" | ";" | ">" | "&" | "<"));
    parts
        .filter_map(|part| {
            let is_ours = |word: &String| word == "signalbox" || word.ends_with("/signalbox");
            let at = part.iter().position(is_ours)?;
            let is_prefix = |word: &String| word == "sudo" || word == "$" || word.contains('=');
            part[..at].iter().all(is_prefix).then(|| part[at..].to_vec())
        })
        .collect()
}

#[test]
fn commands_of_the_pages_are_understood() {
    let mut count = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for command in console_lines(&text).iter().flat_map(|line| commands(line)) {
            count += 1;
            let understood = Cli::try_parse_from(&command);
            let why = understood.err().filter(clap::Error::use_stderr);
            assert!(why.is_none(), "{}: {command:?}: {why:?}", page.display());
        }
        // The text names commands without what they need, or with placeholders.
        for command in inline_code(&text).iter().flat_map(|line| commands(line)) {
            count += 1;
            let why = Cli::try_parse_from(&command).err().map(|error| error.kind());
            let is_unknown = matches!(why, Some(ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument));
            assert!(!is_unknown, "{}: {command:?}: {why:?}", page.display());
        }
    }
    assert!(count > 200, "{count}");
}

#[test]
fn a_line_is_split_as_a_shell_splits_it() {
    let line = "sudo X=1 signalbox weight 'a b' east=9  # why && | not";
    assert_eq!(commands(line), [["signalbox", "weight", "a b", "east=9"]]);
    assert_eq!(commands("signalbox run -f x && signalbox ha status | less").len(), 2);
    assert!(commands("signalbox.yaml:6:45: listeners").is_empty());
    assert!(commands("systemctl restart signalbox").is_empty());
    assert_eq!(
        commands("target/dist/signalbox doctor"),
        [["target/dist/signalbox", "doctor"]]
    );
}
