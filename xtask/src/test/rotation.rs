//! The rotation: tests that take too long for each merge, in shares of a quarter of an hour. `.ci/run` runs one of them
//! after the merge's tests, chosen by the commit.
//!
//! End-to-end tests of share N are in a module `share_N` beside similar tests. Other tests are listed here.

use std::{fmt, str::FromStr};

use anyhow::{Context as _, Result, bail};

use super::{Context, install, stages};
use crate::{
    apt::{AptPackage, package},
    dist,
    exec::Run,
    vm,
};

/// A share, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Share(usize);

type Work = fn(&mut Context) -> Result<()>;

/// Contents of a share.
struct Contents {
    about: &'static str,
    /// Debian packages that its work needs beside the merge's.
    packages: &'static [&'static [AptPackage]],
    work: &'static [(&'static str, Work)],
}

/// Go and its gRPC, to build clients and a kube-apiserver.
const GO: [AptPackage; 2] = [package("golang-go"), package("golang-google-grpc-dev")];
const TESTSSL: [AptPackage; 1] = [package("testssl.sh")];

/// Shares, the first of which is number 1.
const SHARES: [Contents; 12] = [
    Contents {
        about: "a real API server, sources",
        packages: &[&GO],
        work: &[("e2e", stages::with_api_server), ("http1", stages::http1_million)],
    },
    Contents {
        about: "kernels of Debian's releases",
        packages: &[&vm::PACKAGES],
        work: &[("kernels", stages::kernels_of_releases)],
    },
    Contents {
        about: "newer kernels",
        packages: &[&vm::PACKAGES],
        work: &[("kernels", stages::newer_kernels)],
    },
    Contents {
        about: "soaks, storms, crowds",
        packages: &[],
        work: &[("e2e", stages::e2e_of_share)],
    },
    Contents {
        about: "suites of others, programs of the kernel by every right",
        packages: &[&GO, &TESTSSL],
        work: &[("e2e", stages::e2e_of_share), ("kernel", stages::kernel_both_ways)],
    },
    Contents {
        about: "replicated flows of many nodes, the web UI with many hosts",
        packages: &[],
        work: &[("e2e", stages::e2e_of_share)],
    },
    Contents {
        about: "packages, a Debian with systemd, the tutorial",
        packages: &[&vm::PACKAGES, &dist::PACKAGES],
        work: &[("packages", stages::packages), ("debian", stages::debian)],
    },
    Contents {
        about: "fuzzing, eBPF objects built from source",
        packages: &[],
        work: &[("ebpf", stages::ebpf_from_source), ("fuzz", stages::fuzz)],
    },
    Contents {
        about: "a kernel that is too old, two machines",
        packages: &[&vm::PACKAGES],
        work: &[
            ("old-kernel", stages::old_kernel),
            ("two-machines", stages::two_machines),
        ],
    },
    Contents {
        about: "replicated flows whose addresses keepalived moves, nodes that come and leave, repaired sockets",
        packages: &[],
        work: &[("e2e", stages::e2e_of_share), ("sockets", stages::repaired_sockets)],
    },
    Contents {
        about: "a merge's end-to-end tests beside rules of a packet filter",
        packages: &[],
        work: &[("e2e", stages::beside_rules)],
    },
    Contents {
        about: "the manifests on clusters of real nodes",
        packages: &[&GO],
        work: &[("e2e", stages::with_clusters)],
    },
];
/// Share with the kernels of Debian's releases: those that operators run.
const KERNELS: Share = Share(2);

impl Share {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (1..=SHARES.len()).map(Self)
    }

    /// The share for a commit: by its hash. If no kernel of a release has run the current eBPF programs, the commit
    /// needs that first.
    pub(super) fn of_commit() -> Result<Self> {
        if !vm::docs::releases_are_current(&crate::root::root()?)? {
            println!("no kernel of Debian's releases has run these eBPF programs yet");
            return Ok(KERNELS);
        }
        let head = Run::new("git")?.args(["rev-parse", "HEAD"]).answer();
        let head = head.context("`git rev-parse HEAD` names no commit to choose a share by; --share N names one")?;
        Self::of_hash(&head)
    }

    fn of_hash(commit: &str) -> Result<Self> {
        let digits = commit.get(..8).context("a commit's hash is too short")?;
        let number = usize::from_str_radix(digits, 16).with_context(|| format!("{digits} is no hash of a commit"))?;
        Ok(Self(1 + number % SHARES.len()))
    }

    /// Module of its end-to-end tests.
    pub(super) fn module(self) -> String {
        format!("share_{}", self.0)
    }

    fn contents(self) -> &'static Contents {
        &SHARES[self.0 - 1]
    }

    /// Installs the packages that the share needs beside the merge's.
    pub(super) fn install(self) -> Result<()> {
        let packages: Vec<AptPackage> = self.contents().packages.iter().copied().flatten().copied().collect();
        install::packages(&packages)
    }

    /// Names and functions of its work, in order.
    pub(super) fn work(self) -> impl Iterator<Item = (String, Work)> {
        let work = self.contents().work.iter().copied();
        work.map(move |(name, run)| (format!("{}.{name}", self.0), run))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "share {} of {}: {}", self.0, SHARES.len(), self.contents().about)
    }
}

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.parse() {
            _ if text == "of-commit" => Self::of_commit(),
            Ok(number) if (1..=SHARES.len()).contains(&number) => Ok(Self(number)),
            _ => bail!("a share is a number from 1 to {}, or `of-commit`", SHARES.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_spread_over_all_shares_and_one_commit_has_one() {
        let share = |n: u32| Share::of_hash(&format!("{n:08x}ff")).unwrap();
        let mut shares: Vec<usize> = (0..SHARES.len() as u32).map(|n| share(n).0).collect();
        assert_eq!(share(77), share(77));
        shares.sort_unstable();
        assert_eq!(shares, (1..=SHARES.len()).collect::<Vec<_>>());
        assert!(Share::of_hash("zz").is_err());
    }

    #[test]
    fn a_share_that_is_not_there_is_refused_with_the_range() {
        assert_eq!("3".parse::<Share>().unwrap(), Share(3));
        for wrong in ["0", "99", "x"] {
            let error = wrong.parse::<Share>().unwrap_err().to_string();
            assert!(error.contains("from 1 to"), "{error}");
        }
    }

    /// A module that no share has would never run.
    #[test]
    fn every_module_of_a_share_belongs_to_one() {
        let tests = crate::root::root().unwrap().join("userspace/tests/e2e");
        let mut files = Vec::new();
        crate::deps::collect(&tests, &mut files).unwrap();
        let texts = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
        let shares: Vec<usize> = texts
            .flat_map(|text| {
                let modules = text.lines().filter_map(|line| line.trim().strip_prefix("mod share_"));
                modules
                    .map(|module| module.trim_end_matches([' ', '{']).parse().unwrap())
                    .collect::<Vec<_>>()
            })
            .collect();
        assert!(shares.len() > 10, "{shares:?}");
        for number in shares {
            let share: Share = number.to_string().parse().unwrap();
            let names: Vec<&str> = share.contents().work.iter().map(|(name, _)| *name).collect();
            assert!(names.contains(&"e2e"), "{share} runs no end-to-end tests");
        }
    }
}
