//! Facts about the release that is packaged: its version, its time, its machine.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::exec::Run;

/// Facts that packages state about themselves. All of them follow from the commit: packages of the same program have
/// the same bytes.
#[derive(Clone)]
pub(super) struct Release {
    /// For dpkg and rpm. `~` comes before everything: a build between releases is older than the next release.
    pub(super) version: String,
    pub(super) revision: String,
    /// Seconds since 1970, of the commit: the time of every file.
    pub(super) epoch: u64,
    /// Day of the release as YYYY-MM-DD, its time as RFC 3339 has it, and as mail has it.
    pub(super) date: String,
    pub(super) time: String,
    pub(super) mail_date: String,
    pub(super) homepage: String,
}

impl Release {
    pub(super) fn of_checkout(root: &Path) -> Result<Self> {
        let manifest = fs::read_to_string(root.join("Cargo.toml")).context("reading Cargo.toml")?;
        let base = value(&manifest, "version").context("Cargo.toml has no version")?;
        let revision = git(&["rev-parse", "--short=12", "HEAD"])?;
        let time = git(&["log", "-1", "--format=%cd", "--date=format-local:%Y%m%d%H%M%S"])?;
        let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
        let is_tagged = git(&["tag", "--points-at", "HEAD"])?
            .lines()
            .any(|tag| tag == format!("v{base}"));
        Ok(Self {
            version: version(&base, &time, &revision, is_changed, is_tagged),
            revision,
            epoch: git(&["log", "-1", "--format=%ct"])?.parse()?,
            date: git(&["log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%d"])?,
            time: git(&["log", "-1", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ"])?,
            mail_date: git(&[
                "log",
                "-1",
                "--format=%cd",
                "--date=format-local:%a, %d %b %Y %H:%M:%S +0000",
            ])?,
            homepage: value(&manifest, "repository").context("Cargo.toml has no repository")?,
        })
    }
}

impl Release {
    /// A later version of the same, for upgrades.
    pub(super) fn next(&self) -> Self {
        Self {
            version: format!("{}+next", self.version),
            ..self.clone()
        }
    }

    /// Fails unless this is the release itself, not a build before it.
    pub(super) fn must_be_tagged(&self) -> Result<()> {
        if self.version.contains('~') {
            bail!(
                "{} is no release: the commit lacks the tag of its version, or files are changed",
                self.version
            );
        }
        Ok(())
    }
}

/// A tagged commit is the release; every other one comes before it, in the order of time.
fn version(base: &str, time: &str, revision: &str, is_changed: bool, is_tagged: bool) -> String {
    match (is_tagged, is_changed) {
        (true, false) => base.to_owned(),
        (_, false) => format!("{base}~{time}.g{revision}"),
        (_, true) => format!("{base}~{time}.g{revision}.changed"),
    }
}

fn value(manifest: &str, key: &str) -> Option<String> {
    let line = manifest
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
    Some(line.trim_matches('"').to_owned())
}

fn git(args: &[&str]) -> Result<String> {
    let answer = Run::new("git")?.args(args).env("TZ", "UTC").answer();
    let Some(text) = answer else {
        bail!(
            "`git {}` prints nothing: packages get version and time from the commit",
            args.join(" ")
        );
    };
    Ok(text.trim().to_owned())
}

/// The machine's name, as dpkg and as rpm have it.
pub(super) fn architectures() -> Result<(&'static str, &'static str)> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(("amd64", "x86_64")),
        "aarch64" => Ok(("arm64", "aarch64")),
        other => bail!("signalbox is not packaged for {other} yet"),
    }
}

#[cfg(test)]
impl Release {
    /// A release of a made-up commit.
    pub(super) fn example(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            revision: "abc".to_owned(),
            epoch: 1_893_553_445,
            date: "2030-01-02".to_owned(),
            time: "2030-01-02T03:04:05Z".to_owned(),
            mail_date: String::new(),
            homepage: "https://example.invalid".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tagged_commit_without_changes_is_a_release() {
        assert!(Release::example("0.1.0").must_be_tagged().is_ok());
        for (is_changed, is_tagged) in [(true, true), (false, false)] {
            let version = version("0.1.0", "1", "abc", is_changed, is_tagged);
            assert!(Release::example(&version).must_be_tagged().is_err());
        }
    }

    #[test]
    fn builds_between_releases_sort_before_the_next_one_by_time() {
        let at = |time| version("0.1.0", time, "abc", false, false);
        assert_eq!(version("0.1.0", "1", "abc", false, true), "0.1.0");
        assert_eq!(at("20300102030405"), "0.1.0~20300102030405.gabc");
        assert_eq!(version("0.1.0", "1", "abc", true, true), "0.1.0~1.gabc.changed");
        assert!(at("20300102030405") < at("20300102030406"));
    }
}
