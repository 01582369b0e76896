//! Complaints of lintian, rpmlint and mandoc, less those that are known and have a reason.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::exec::Run;

/// A linter of packages or pages.
pub(super) struct Linter {
    pub(super) name: &'static str,
    pub(super) words: &'static [&'static str],
    /// The tag of a line of its output, if the line is a finding.
    pub(super) tag: fn(&str) -> Option<&str>,
}

pub(super) const LINTIAN: Linter = Linter {
    name: "lintian",
    words: &[
        "--no-cfg",
        "--allow-root",
        "--tag-display-limit",
        "0",
        "--fail-on",
        "none",
        "--display-info",
    ],
    tag: lintian_tag,
};
pub(super) const RPMLINT: Linter = Linter {
    name: "rpmlint",
    words: &[],
    tag: rpmlint_tag,
};
pub(super) const MANDOC: Linter = Linter {
    name: "mandoc",
    words: &["-T", "lint"],
    tag: mandoc_tag,
};

impl Linter {
    /// Lines without an exception, and exceptions that are no longer needed.
    pub(super) fn check(&self, root: &Path, files: &[impl AsRef<Path>]) -> Result<Vec<String>> {
        let excepted = self.exceptions(root)?;
        let said = self.says(files)?;
        let mut needed = BTreeSet::new();
        let mut problems = Vec::new();
        for line in said.lines() {
            let Some(tag) = (self.tag)(line) else { continue };
            if excepted.iter().any(|known| known == tag) {
                needed.insert(tag.to_owned());
            } else {
                problems.push(format!("{}: {line}", self.name));
            }
        }
        for tag in excepted.iter().filter(|tag| !needed.contains(*tag)) {
            problems.push(format!("{}: nothing needs the exception `{tag}` any more", self.name));
        }
        Ok(problems)
    }

    /// Fails unless the linter reports `tag` for a broken file: it runs, and its output is understood.
    pub(super) fn must_notice(&self, broken: &Path, tag: &str) -> Result<()> {
        let said = self.says(&[broken])?;
        if said.lines().any(|line| (self.tag)(line) == Some(tag)) {
            return Ok(());
        }
        bail!(
            "{} does not say `{tag}` of {}; it says:\n{said}",
            self.name,
            broken.display()
        )
    }

    fn says(&self, files: &[impl AsRef<Path>]) -> Result<String> {
        let run = Run::new(self.name)?.args(self.words);
        let (_, said) = run.args(files.iter().map(AsRef::as_ref)).outcome()?;
        Ok(said)
    }

    fn exceptions(&self, root: &Path) -> Result<Vec<String>> {
        let file = root.join("packaging/exceptions").join(format!("{}.txt", self.name));
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines
            .map(|line| match line.split_once("  ") {
                Some((tag, reason)) if !reason.trim().is_empty() => Ok(tag.to_owned()),
                _ => bail!("{}: `{line}` has no reason", file.display()),
            })
            .collect()
    }
}

/// `W: package: tag details`.
fn lintian_tag(line: &str) -> Option<&str> {
    let (level, rest) = line.split_once(": ")?;
    let (_, finding) = rest.split_once(": ")?;
    matches!(level, "E" | "W" | "I").then_some(())?;
    finding.split_whitespace().next()
}

/// `package.x86_64: W: tag details`.
fn rpmlint_tag(line: &str) -> Option<&str> {
    let (_, finding) = line.split_once(": W: ").or_else(|| line.split_once(": E: "))?;
    finding.split_whitespace().next()
}

/// `mandoc: file:line:column: LEVEL: words: details`.
fn mandoc_tag(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix("mandoc: ")?.split_once(": ")?;
    let (level, words) = rest.split_once(": ")?;
    let words = words.split(": ").next()?;
    rest.get(..level.len() + 2 + words.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_from_each_output() {
        assert_eq!(
            lintian_tag("E: signalbox: no-changelog usr/share"),
            Some("no-changelog")
        );
        assert_eq!(lintian_tag("N: 1 tag overridden"), None);
        assert_eq!(
            rpmlint_tag("signalbox.x86_64: W: no-documentation"),
            Some("no-documentation")
        );
        assert_eq!(
            rpmlint_tag("2 packages and 0 specfiles checked; 0 errors, 0 warnings"),
            None
        );
        let line = "mandoc: /man/a.8:7:111: STYLE: input text line longer than 80 bytes: a\\-b";
        assert_eq!(mandoc_tag(line), Some("STYLE: input text line longer than 80 bytes"));
        assert_eq!(
            mandoc_tag("mandoc: a.8: WARNING: missing date"),
            Some("WARNING: missing date")
        );
    }
}
