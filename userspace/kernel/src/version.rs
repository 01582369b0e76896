//! Version of the running kernel, as its maintainers count.

use std::cmp::Ordering;
use std::fmt;

/// Oldest kernel line on which all programs are known to load: see docs/kernels.md.
pub const OLDEST_KERNEL: (u32, u32) = (5, 14);

/// A version of Linux.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    numbers: (u32, u32, u32),
    /// Output of `uname -r`: on Debian it names a package's ABI, not the version.
    release: String,
}

impl Version {
    /// Returns the version of the running kernel.
    #[must_use]
    pub fn running() -> Self {
        let uts = nix::sys::utsname::uname();
        let release = uts
            .map(|uts| uts.release().to_string_lossy().into_owned())
            .unwrap_or_default();
        let banner = std::fs::read_to_string("/proc/version").unwrap_or_default();
        Self::of(&release, &banner)
    }

    /// Parses `uname -r` and `/proc/version`. Debian's kernels say "6.1.0-56-cloud-amd64" in the former and "... SMP
    /// PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-14)" in the latter.
    pub(super) fn of(release: &str, banner: &str) -> Self {
        let debian = banner.split_whitespace().skip_while(|word| *word != "Debian").nth(1);
        // The word after "Debian" is the version only if its major number is that of the release: it may be a build
        // number.
        let debian = debian.filter(|text| numbers(text).0 == numbers(release).0);
        Self {
            numbers: numbers(debian.unwrap_or(release)),
            release: release.to_owned(),
        }
    }

    /// Returns whether the version is `major.minor` or later.
    #[must_use]
    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        (self.numbers.0, self.numbers.1).cmp(&(major, minor)) != Ordering::Less
    }

    /// Returns major, minor and patch level.
    #[must_use]
    pub const fn numbers(&self) -> (u32, u32, u32) {
        self.numbers
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.numbers;
        let numbers = format!("{major}.{minor}.{patch}");
        if self.release.starts_with(&numbers) {
            f.write_str(&self.release)
        } else {
            write!(f, "{numbers} ({})", self.release)
        }
    }
}

fn numbers(text: &str) -> (u32, u32, u32) {
    let mut numbers = text
        .split(|c: char| !c.is_ascii_digit())
        .map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

/// Returns advice for a program that the kernel's verifier refuses.
#[must_use]
pub fn remedy() -> String {
    let (major, minor) = OLDEST_KERNEL;
    if Version::running().is_at_least(major, minor) {
        "docs/kernels.md lists the kernels that take all programs; `signalbox doctor --verbose` shows the verifier's log".into()
    } else {
        format!("kernel {major}.{minor} or later takes it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_version_is_not_its_release() {
        let banner = "Linux version 6.1.0-56-cloud-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, \
                      GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-14)";
        let version = Version::of("6.1.0-56-cloud-amd64", banner);
        assert_eq!(version.numbers(), (6, 1, 192));
        assert_eq!(version.to_string(), "6.1.192 (6.1.0-56-cloud-amd64)");
    }

    #[test]
    fn others_say_it_in_their_release() {
        for (release, banner, numbers) in [
            (
                "6.18.44",
                "Linux version 6.18.44 (root@host) (gcc (Debian 12.2.0-14) 12.2.0) #1 SMP",
                (6, 18, 44),
            ),
            (
                "5.14.0-503.11.1.el9_5.x86_64",
                "Linux version 5.14.0-503.11.1.el9_5.x86_64 (mockbuild@rhel)",
                (5, 14, 0),
            ),
            (
                "6.8.0-45-generic",
                "Linux version 6.8.0-45-generic (buildd@lcy02) #45-Ubuntu SMP",
                (6, 8, 0),
            ),
            ("", "", (0, 0, 0)),
        ] {
            assert_eq!(Version::of(release, banner).numbers(), numbers, "{release}");
        }
        assert!(Version::of("6.6.1", "").is_at_least(6, 6) && !Version::of("6.5.13", "").is_at_least(6, 6));
    }
}
