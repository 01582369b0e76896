//! Checks pages: the sources, functions and pages that they name exist, and lines are wrapped.

use std::{fs, path::Path};

use anyhow::{Context, Result};

/// Folders that a source's path may begin at.
const BASES: [&str; 3] = ["", "userspace/src", "userspace"];

const MAX_COLUMNS: usize = 120;

/// Pages at the top of the repository.
pub(crate) const TOP_PAGES: [&str; 4] = ["CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"];

/// Returns the pages at the top and those of `docs`, by name.
pub(crate) fn pages(root: &Path) -> Result<Vec<String>> {
    let mut pages: Vec<_> = TOP_PAGES.map(str::to_owned).into();
    for entry in fs::read_dir(root.join("docs")).context("docs cannot be read")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let is_page = Path::new(&name).extension().is_some_and(|extension| extension == "md");
        if is_page && name != "SUMMARY.md" {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort();
    Ok(pages)
}

/// Chapters of the site that `cargo xtask docs` builds.
/// Page whose commands share 7 of the rotation runs.
const RUN_PAGE: &str = "docs/tutorial.md";

/// Comments before blocks of code: a test runs it; a test parses its commands (`userspace/src/cli/tests.rs`); nothing
/// does.
const MARKS: [&str; 3] = ["<!-- tested: ", "<!-- parsed -->", "<!-- not run: "];

const SUMMARY: &str = "docs/SUMMARY.md";

/// Returns the faults of all pages.
pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let summary = fs::read_to_string(root.join(SUMMARY)).with_context(|| format!("{SUMMARY} cannot be read"))?;
    let mut faults = Vec::new();
    for page in pages(root)? {
        let name = page.trim_start_matches("docs/");
        if !summary.contains(&format!("]({name})")) {
            faults.push(format!("{SUMMARY} does not list {page}"));
        }
        let text = fs::read_to_string(root.join(&page)).with_context(|| format!("{page} cannot be read"))?;
        faults.extend(check_page(root, &page, &text));
    }
    Ok(faults)
}

fn check_page(root: &Path, page: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut is_code, mut is_span, mut before) = (false, false, "");
    for (at, line) in text.lines().enumerate() {
        let mut fault = |what: String| faults.push(format!("{page}:{}: {what}", at + 1));
        let previous = std::mem::replace(&mut before, line.trim_start());
        if let Some(language) = line.trim_start().strip_prefix("```") {
            is_code = !is_code;
            if is_code && let Some(what) = unmarked_block(page, language, previous) {
                fault(what);
            }
            continue;
        }
        if is_code {
            continue;
        }
        let is_free = line.starts_with('|') || line.starts_with("<!--");
        if !is_free && line.chars().count() > MAX_COLUMNS {
            fault(format!("the line is longer than {MAX_COLUMNS} columns"));
        }
        // A span of code may continue in the next line, but not beyond its paragraph.
        is_span &= !line.trim().is_empty();
        for (nth, name) in line.split('`').enumerate() {
            is_span ^= nth > 0;
            if is_span && let Some(what) = missing_source(root, name) {
                fault(what);
            }
        }
        for target in link_targets(line) {
            if let Some(what) = missing_page(root, page, text, target) {
                fault(what);
            }
        }
    }
    faults
}

/// Fault of a block of code that no test runs or reads, and that does not say so in a comment before it.
fn unmarked_block(page: &str, language: &str, before: &str) -> Option<String> {
    let is_tested = match language {
        // `userspace/config/src/tests/pages.rs` reads YAML, except objects of Kubernetes, and what a comment leaves out.
        "text" | "yaml" => true,
        "console" => page == RUN_PAGE,
        _ => false,
    };
    let is_marked = MARKS.iter().any(|mark| before.starts_with(mark));
    (!is_tested && !is_marked).then(|| {
        format!(
            "the block of {language:?} is not run: have a test run it, or write {} before it",
            MARKS.join(" or ")
        )
    })
}

/// Targets of the links of a line, but those that leave the repository.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://"))
}

/// Fault of a source that is named, or of a function of one (`datapath/accept.rs::run`), if there is one.
fn missing_source(root: &Path, name: &str) -> Option<String> {
    let (path, function) = name
        .split_once("::")
        .map_or((name, None), |(path, function)| (path, Some(function)));
    let is_plain = path.contains('/') && !path.contains(['*', ' ', '{', '$', '<']);
    let is_ours = super::FOLDERS
        .iter()
        .any(|folder| path.starts_with(&format!("{folder}/")));
    if is_plain && is_ours && !path.ends_with(".rs") && !path.contains("/prebuilt") {
        return (!root.join(path).exists()).then(|| format!("{path} does not exist"));
    }
    if !is_plain || !path.ends_with(".rs") {
        return None;
    }
    let found = BASES
        .iter()
        .find_map(|base| fs::read_to_string(root.join(base).join(path)).ok());
    let Some(source) = found else {
        return Some(format!(
            "{path} does not exist, neither at the root nor below userspace or userspace/src"
        ));
    };
    let function = function?;
    let is_there = ["(", "<"]
        .iter()
        .any(|end| source.contains(&format!("fn {function}{end}")));
    (!is_there).then(|| format!("{path} has no function {function}"))
}

/// Fault of a link to a file or heading, if there is one.
fn missing_page(root: &Path, page: &str, text: &str, target: &str) -> Option<String> {
    let (path, heading) = target
        .split_once('#')
        .map_or((target, None), |(path, heading)| (path, Some(heading)));
    let file = root.join(page).parent()?.join(path);
    if !path.is_empty() && !file.exists() {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let heading = heading?;
    let other = if path.is_empty() {
        text.to_owned()
    } else {
        fs::read_to_string(file).ok()?
    };
    let is_there = other.lines().any(|line| line.starts_with('#') && slug(line) == heading);
    (!is_there).then(|| format!("the link to {target} names no heading"))
}

/// Name of a heading in links.
fn slug(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        check_page(&crate::root::root().unwrap(), "docs/x.md", text)
    }

    #[test]
    fn references_to_existing_files_and_headings_are_accepted() {
        let text = "## A heading, of words\n`datapath/accept.rs::run`, `core/src/lib.rs`, `lib.rs`, `core/src/wire`,\n\
                    [a](lexicon.md), [b](#a-heading-of-words), [c](https://example.com/nowhere.md)\n\
                    ```text\n`no/such.rs`\n```\n";
        assert_eq!(faults(text), [""; 0]);
    }

    #[test]
    fn blocks_are_run_by_tests_or_say_that_they_are_not() {
        let block = |before: &str, language: &str| format!("{before}\n```{language}\nx\n```\n");
        for language in ["console", "sh", "json", ""] {
            assert_eq!(faults(&block("", language)).len(), 1, "{language}");
            for mark in ["<!-- tested: x -->", "<!-- parsed -->", "<!-- not run: why -->"] {
                assert_eq!(faults(&block(mark, language)), [""; 0], "{language}");
            }
        }
        assert_eq!(
            faults(&block("", "yaml")),
            [""; 0],
            "the tests of the configuration read it"
        );
        let root = crate::root::root().unwrap();
        assert_eq!(check_page(&root, "docs/tutorial.md", &block("", "console")), [""; 0]);
    }

    #[test]
    fn broken_references_and_long_lines_are_reported_by_line() {
        assert_eq!(
            faults("\n`datapath/gone.rs`"),
            ["docs/x.md:2: datapath/gone.rs does not exist, neither at the root nor below userspace or userspace/src"]
        );
        assert_eq!(
            faults("`datapath/accept.rs::gone`"),
            ["docs/x.md:1: datapath/accept.rs has no function gone"]
        );
        assert_eq!(faults("`core/gone`"), ["docs/x.md:1: core/gone does not exist"]);
        assert_eq!(
            faults("[a](gone.md)"),
            ["docs/x.md:1: the link to gone.md leads nowhere"]
        );
        assert_eq!(
            faults("[a](lexicon.md#gone)"),
            ["docs/x.md:1: the link to lexicon.md#gone names no heading"]
        );
        assert_eq!(
            faults(&"x".repeat(121)),
            ["docs/x.md:1: the line is longer than 120 columns"]
        );
        assert_eq!(faults(&format!("| {} |", "x".repeat(121))), [""; 0]);
    }
}
