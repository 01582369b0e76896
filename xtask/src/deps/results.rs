//! Checks the benchmarks' results: each is of a commit that HEAD descends from, and the pages show the same figures.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::exec::Run;

/// Folders of results.
const RESULTS: [&str; 4] = [
    "bench/results",
    "bench/results/http",
    "bench/results/conditions",
    "bench/results/ha",
];

/// Pages with figures, or with a place for files of results.
const PAGES: [&str; 2] = ["README.md", "docs/benchmarks.md"];

/// Begin of a place for a file of results, which its path follows, and end of the place.
const BEGIN: &str = "<!-- bench: ";
const END: &str = "<!-- end of bench -->";

/// Fix for a figure that is of no commit of this history.
const REMEDY: &str = "measure again with `cargo xtask bench` at a commit of this branch";

/// Faults of results and pages.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let has_history = has_history();
    if !has_history {
        eprintln!("there is no history of commits: the commits of results cannot be checked");
    }
    for folder in RESULTS {
        let file = format!("{folder}/latest.json");
        let Ok(text) = fs::read_to_string(root.join(&file)) else {
            continue;
        };
        let results: Value = serde_json::from_str(&text).with_context(|| format!("{file} cannot be read"))?;
        let revision = results["facts"]["revision"].as_str().unwrap_or_default();
        faults.extend(fault_of(&file, revision, has_history, is_ancestor));
    }
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).with_context(|| format!("{page} cannot be read"))?;
        for (at, line) in text.lines().enumerate() {
            for revision in commits(line) {
                faults.extend(fault_of(
                    &format!("{page}:{}", at + 1),
                    revision,
                    has_history,
                    is_ancestor,
                ));
            }
        }
        let shown = fill(&text, &|file| fs::read_to_string(root.join(file)).ok());
        match shown {
            Err(what) => faults.push(format!("{page}: {what}")),
            Ok(shown) if shown != text => faults.push(format!(
                "{page} does not show what bench/results says: `cargo xtask check-deps --update-docs`"
            )),
            Ok(_) => {}
        }
    }
    Ok(faults)
}

/// Writes the results into the pages.
pub(super) fn update(root: &Path) -> Result<()> {
    for page in PAGES {
        let path = root.join(page);
        let text = fs::read_to_string(&path).with_context(|| format!("{page} cannot be read"))?;
        let shown = fill(&text, &|file| fs::read_to_string(root.join(file)).ok());
        let shown = shown.map_err(anyhow::Error::msg).with_context(|| page.to_owned())?;
        fs::write(&path, shown).with_context(|| format!("{page} cannot be written"))?;
    }
    Ok(())
}

/// Fault of the commit that a figure is of.
fn fault_of(place: &str, revision: &str, has_history: bool, is_ancestor: fn(&str) -> bool) -> Option<String> {
    let is_hash = revision.len() >= 7 && revision.chars().all(|c| c.is_ascii_hexdigit());
    let what = match revision {
        _ if revision.ends_with('+') => format!("was measured with changes that are in no commit ({revision})"),
        _ if !is_hash => format!("names no commit, but \"{revision}\""),
        _ if has_history && !is_ancestor(revision) => {
            format!("was measured at {revision}, which is no ancestor of HEAD")
        }
        _ => return None,
    };
    Some(format!("{place} {what}: {REMEDY}"))
}

/// Commits that a line names: hexadecimal numbers after the word.
fn commits(line: &str) -> impl Iterator<Item = &str> {
    let after = line.split("commit ").skip(1);
    let words = after.map(|rest| {
        rest.split(|c: char| !c.is_ascii_alphanumeric())
            .next()
            .unwrap_or_default()
    });
    words.filter(|word| {
        let is_hex = word.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c));
        (7..=40).contains(&word.len()) && is_hex
    })
}

/// A page with each place filled; a file that is not there yet leaves its place empty.
fn fill(page: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), page);
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (file, after) = after.split_once(" -->\n").ok_or("a place for results names no file")?;
        let (_, after) = after
            .split_once(END)
            .ok_or_else(|| format!("the place for {file} has no end: {END}"))?;
        let found = read(file).unwrap_or_default();
        let body = found.trim();
        let body = if body.is_empty() {
            String::new()
        } else {
            format!("\n{body}\n\n")
        };
        text += &format!("{before}{BEGIN}{file} -->\n{body}{END}");
        rest = after;
    }
    Ok(text + rest)
}

/// Whether the checkout knows commits before HEAD: an archive and a shallow clone do not.
fn has_history() -> bool {
    let git = |words: &[&str]| Run::new("git").ok().and_then(|run| run.args(words).answer());
    let is_shallow = git(&["rev-parse", "--is-shallow-repository"]);
    is_shallow.is_some_and(|answer| answer.trim() == "false") && git(&["rev-parse", "--verify", "HEAD"]).is_some()
}

fn is_ancestor(revision: &str) -> bool {
    let words = ["merge-base", "--is-ancestor", revision, "HEAD"];
    Run::new("git").is_ok_and(|run| run.args(words).answer().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_of_a_commit_that_head_descends_from() {
        let fault = |revision, has_history| fault_of("x.json", revision, has_history, |of| of == "2fbbde57016f");
        assert_eq!(fault("2fbbde57016f", true), None);
        let other = "x.json was measured at 0123456789ab, which is no ancestor of HEAD: measure again with `cargo xtask \
                     bench` at a commit of this branch";
        assert_eq!(fault("0123456789ab", true).unwrap(), other);
        assert_eq!(fault("0123456789ab", false), None);
        assert!(
            fault("2fbbde57016f+", false)
                .unwrap()
                .contains("changes that are in no commit")
        );
        assert!(
            fault("", false)
                .unwrap()
                .starts_with("x.json names no commit, but \"\"")
        );
    }

    #[test]
    fn commits_are_found_in_words() {
        let found = |line| commits(line).collect::<Vec<_>>();
        assert_eq!(
            found("at commit 2fbbde5 (x); of commit e22c65a, and"),
            ["2fbbde5", "e22c65a"]
        );
        assert_eq!(found("a commit of this branch, commit it, commit decade1s"), [""; 0]);
    }

    #[test]
    fn places_are_filled_and_what_is_not_there_is_empty() {
        let read = |file: &str| (file == "a.md").then(|| "| x |\n".to_owned());
        let page =
            "1\n<!-- bench: a.md -->\nold\n<!-- end of bench -->\n2\n<!-- bench: b.md -->\n<!-- end of bench -->\n";
        let filled = fill(page, &read).unwrap();
        let wanted = "1\n<!-- bench: a.md -->\n\n| x |\n\n<!-- end of bench -->\n2\n<!-- bench: b.md -->\n\
                      <!-- end of bench -->\n";
        assert_eq!(filled, wanted);
        assert_eq!(fill(&filled, &read).unwrap(), filled);
        assert!(
            fill("<!-- bench: a.md -->\n", &read)
                .unwrap_err()
                .contains("has no end")
        );
    }

    #[test]
    fn a_commit_of_this_history_is_an_ancestor() {
        if has_history() {
            assert!(is_ancestor("HEAD") && !is_ancestor("0000000000000000000000000000000000000000"));
        }
    }
}
