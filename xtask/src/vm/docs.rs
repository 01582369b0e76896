//! Documents written from machines' outcomes: docs/kernels.md and the line "Tested on" of README.md; and the verifier's
//! work compared with the last record.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::outcome::{Outcome, PEEK};
use crate::root::prebuilt_record;

/// Percentage of its earlier value beyond which the verifier's work is an alarm.
const ALARM_PERCENT: u64 = 120;
const BEGIN: &str = "<!-- written by `cargo xtask test --kernel ... --update-docs` -->";
const END: &str = "<!-- end of what is written -->";

/// Results of a kernel, as ebpf/kernels.json has them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Tested {
    version: String,
    /// Hash of the programs that were tested, by `shipped`.
    programs_sha256: String,
    programs: BTreeMap<String, Verdict>,
    /// Number of tests that passed in each step; `None` where one failed.
    steps: BTreeMap<String, Option<usize>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Verdict {
    /// Numbers of instructions that the verifier walked, and of states that it remembered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accepted: Option<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

type All = BTreeMap<String, Tested>;

fn read(root: &Path) -> Result<All> {
    let path = root.join("ebpf/kernels.json");
    let Ok(text) = fs::read_to_string(&path) else {
        return Ok(All::new());
    };
    serde_json::from_str(&text).with_context(|| format!("{} is not what `--update-docs` writes", path.display()))
}

fn tested(outcome: &Outcome, hash: &str) -> Tested {
    let verdict = |verdict: &serde_json::Value| Verdict {
        accepted: verdict["accepted"]["instructions"]
            .as_u64()
            .zip(verdict["accepted"]["states"].as_u64()),
        refused: verdict["refused"]["reason"].as_str().map(str::to_owned),
    };
    let programs = outcome.programs().into_iter();
    let steps = outcome.steps().into_iter().filter(|(step, ..)| *step != "doctor");
    Tested {
        version: outcome.version.clone(),
        programs_sha256: hash.to_owned(),
        programs: programs
            .map(|(name, value)| (name.to_owned(), verdict(value)))
            .collect(),
        steps: steps
            .map(|(step, passed, ok)| (step.to_owned(), ok.then_some(passed)))
            .collect(),
    }
}

/// Lines about programs that cost the verifier a fifth more than they did.
pub(super) fn compare(root: &Path, outcomes: &[Outcome]) -> Result<Vec<String>> {
    let before = read(root)?;
    let now = outcomes
        .iter()
        .map(|outcome| (outcome.name.as_str(), tested(outcome, "")));
    Ok(now
        .flat_map(|(name, now)| {
            before
                .get(name)
                .map_or_else(Vec::new, |before| alarms(name, before, &now))
        })
        .collect())
}

fn alarms(kernel: &str, before: &Tested, now: &Tested) -> Vec<String> {
    let mut alarms = Vec::new();
    for (program, verdict) in &now.programs {
        let was = before.programs.get(program).and_then(|was| was.accepted);
        let (Some(was), Some(is)) = (was, verdict.accepted) else {
            continue;
        };
        for (what, was, is) in [("instructions", was.0, is.0), ("states", was.1, is.1)] {
            // A hundred more or less of a small program does not matter.
            if is * 100 > was * ALARM_PERCENT && is > was + 500 {
                alarms.push(format!(
                    "kernel {kernel}: the verifier's work for {program} has grown from {was} to {is} {what}: make it cheaper, or accept \
                     it by `cargo xtask test --kernel {kernel} --update-docs`"
                ));
            }
        }
    }
    alarms
}

/// Writes new results, beside those known of other kernels.
pub(super) fn write(root: &Path, outcomes: &[Outcome]) -> Result<()> {
    let hash = shipped(root)?;
    let mut all = read(root)?;
    for outcome in outcomes {
        all.insert(outcome.name.clone(), tested(outcome, &hash));
    }
    let mut text = serde_json::to_string_pretty(&all)?;
    text.push('\n');
    fs::write(root.join("ebpf/kernels.json"), text)?;
    rewrite(root)
}

/// Writes the pages from the results that are known: new eBPF programs make all rows those of older ones.
pub(crate) fn rewrite(root: &Path) -> Result<()> {
    for (path, text) in pages(root)? {
        let whole = read_page(&path)?;
        let (head, _, tail) = parts(&path, &whole)?;
        fs::write(&path, format!("{head}{BEGIN}\n{text}{END}{tail}"))?;
    }
    Ok(())
}

/// Fails where a page claims results of other programs for those that ship.
pub(crate) fn check(root: &Path) -> Result<()> {
    for (path, text) in pages(root)? {
        let whole = read_page(&path)?;
        let (_, written, _) = parts(&path, &whole)?;
        if written.trim_start_matches('\n') != text.trim_start_matches('\n') {
            bail!(
                "{} does not say which kernels have run the eBPF programs that ship: `cargo xtask build-ebpf` or \
                 `cargo xtask test --kernel ... --update-docs` writes it from ebpf/kernels.json",
                path.display()
            );
        }
    }
    Ok(())
}

/// Whether the kernels of Debian's releases have run the programs that ship.
pub(crate) fn releases_are_current(root: &Path) -> Result<bool> {
    let (all, hash) = (read(root)?, shipped(root)?);
    let is_current = |name: &&str| all.get(*name).is_some_and(|tested| tested.programs_sha256 == hash);
    Ok(super::RELEASES.iter().all(is_current))
}

/// Hash of the programs that ship.
///
/// The objects are hashed, because a kernel that ran the same instructions does not have to run them again after a change
/// of comments.
fn shipped(root: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Record {
        objects_sha256: BTreeMap<String, String>,
    }
    let path = prebuilt_record(root);
    let text = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let record: Record = serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
    let mut hash = Sha256::new();
    for (name, object) in record.objects_sha256.iter().filter(|(name, _)| *name != "testing") {
        hash.update(format!("{name} {object}\n"));
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// The pages, and the text between the marks of each.
fn pages(root: &Path) -> Result<[(PathBuf, String); 2]> {
    let (all, hash) = (read(root)?, shipped(root)?);
    Ok([
        (root.join("docs/kernels.md"), page(&all, &hash)),
        (root.join("README.md"), readme(&all, &hash)),
    ])
}

fn read_page(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// Splits a page into the text before the marks, between and after them.
fn parts<'a>(path: &Path, whole: &'a str) -> Result<(&'a str, &'a str, &'a str)> {
    let (head, rest) = whole
        .split_once(BEGIN)
        .with_context(|| format!("{} has no line {BEGIN}", path.display()))?;
    let (written, tail) = rest
        .split_once(END)
        .with_context(|| format!("{} has no line {END}", path.display()))?;
    Ok((head, written, tail))
}

/// Kernels from the oldest to the newest.
fn in_order(all: &All) -> Vec<(&String, &Tested)> {
    let numbers = |tested: &Tested| -> Vec<u32> {
        tested
            .version
            .split(|c: char| !c.is_ascii_digit())
            .map_while(|part| part.parse().ok())
            .collect()
    };
    let mut kernels: Vec<_> = all.iter().filter(|(_, tested)| !tested.programs.is_empty()).collect();
    kernels.sort_by_key(|(_, tested)| numbers(tested));
    kernels
}

/// Short version of a kernel: 6.12.117 of "6.12.117+deb13-cloud-amd64".
fn short(tested: &Tested) -> &str {
    let end = tested.version.find(|c: char| !c.is_ascii_digit() && c != '.');
    &tested.version[..end.unwrap_or(tested.version.len())]
}

/// Text of docs/kernels.md. `shipped` is the hash of the programs that ship.
fn page(all: &All, shipped: &str) -> String {
    let kernels = in_order(all);
    let mut steps: Vec<&String> = kernels.iter().flat_map(|(_, tested)| tested.steps.keys()).collect();
    steps.sort();
    steps.dedup();
    let mut text = String::new();
    let _ = write!(
        text,
        "\nThe programs that ship have the hash {}.\n\n| Kernel | Run with | Programs |",
        hash_of(shipped)
    );
    for step in &steps {
        let _ = write!(text, " {step} |");
    }
    let _ = write!(text, "\n|---|---|---|{}\n", "---|".repeat(steps.len()));
    for (_, tested) in &kernels {
        let refused: Vec<&str> = tested
            .programs
            .iter()
            .filter(|(_, verdict)| verdict.refused.is_some())
            .map(|(name, _)| name.as_str())
            .collect();
        let programs = if refused.is_empty() {
            "all".to_owned()
        } else {
            format!("without {}", refused.join(", "))
        };
        let run_with = if tested.programs_sha256 == shipped {
            "**those that ship**".to_owned()
        } else {
            format!("older: {}", hash_of(&tested.programs_sha256))
        };
        let _ = write!(text, "| {} | {run_with} | {programs} |", short(tested));
        for step in &steps {
            let cell = match tested.steps.get(*step) {
                Some(Some(passed)) => format!("{passed} passed"),
                Some(None) => "**failed**".to_owned(),
                None => "–".to_owned(),
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    if let Some(two) = all.get("two machines") {
        let passed = two.steps.values().flatten().sum::<usize>();
        let _ = write!(
            text,
            "\nTwo machines with multi-queue network cards, programs in the drivers ({}): {passed} passed.\n",
            short(two)
        );
    }
    text += "\nThe verifier's work, as instructions walked (a million at most) / states kept:\n\n| Program |";
    for (_, tested) in &kernels {
        let _ = write!(text, " {} |", short(tested));
    }
    let _ = write!(text, "\n|---|{}\n", "---:|".repeat(kernels.len()));
    let mut programs: Vec<&String> = kernels.iter().flat_map(|(_, tested)| tested.programs.keys()).collect();
    programs.sort();
    programs.dedup();
    for program in programs {
        let _ = write!(text, "| {program} |");
        for (_, tested) in &kernels {
            let verdict = tested.programs.get(program);
            let cell = match verdict.map(|verdict| verdict.accepted) {
                Some(Some((instructions, states))) => format!("{instructions} / {states}"),
                Some(None) => "refused".to_owned(),
                None => "–".to_owned(),
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    let refusals = kernels.iter().flat_map(|(_, tested)| {
        let refused = tested
            .programs
            .iter()
            .filter_map(|(name, verdict)| Some((name, verdict.refused.as_ref()?)));
        refused.map(|(name, why)| format!("- {} refuses {name}: {why}\n", short(tested)))
    });
    let refusals: String = refusals.collect();
    if !refusals.is_empty() {
        let _ = write!(text, "\n{refusals}");
    }
    text.push('\n');
    text
}

/// Short form of a hash of programs.
fn hash_of(programs: &str) -> &str {
    programs.get(..8).unwrap_or(programs)
}

/// Line of the README: kernels on which the programs that ship have passed everything.
fn readme(all: &All, shipped: &str) -> String {
    let is_good = |tested: &Tested| {
        // Without the kernel peek's program connections have sockets, and everything works.
        let mut needed = tested.programs.iter().filter(|(name, _)| *name != PEEK);
        needed.all(|(_, verdict)| verdict.refused.is_none()) && tested.steps.values().all(Option::is_some)
    };
    let good: Vec<&str> = in_order(all)
        .into_iter()
        .filter(|(_, tested)| is_good(tested) && tested.programs_sha256 == shipped)
        .map(|(_, tested)| short(tested))
        .collect();
    if good.is_empty() {
        return "Not yet tested on other kernels with these eBPF programs ([docs/kernels.md](docs/kernels.md)).\n"
            .to_owned();
    }
    format!(
        "Tested on Linux {} ([docs/kernels.md](docs/kernels.md)).\n",
        good.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(version: &str, instructions: u64, failed: bool) -> Tested {
        let verdict = Verdict {
            accepted: Some((instructions, 100)),
            refused: None,
        };
        Tested {
            version: version.into(),
            programs_sha256: String::new(),
            programs: [("cut_in".to_owned(), verdict)].into(),
            steps: [("scenario".to_owned(), (!failed).then_some(1))].into(),
        }
    }

    #[test]
    fn a_fifth_more_work_is_an_alarm_and_a_little_more_is_none() {
        let before = tested("6.1.1", 10_000, false);
        assert_eq!(alarms("6.1", &before, &tested("6.1.1", 11_900, false)), [""; 0]);
        let alarm = alarms("6.1", &before, &tested("6.1.1", 12_600, false));
        assert!(
            alarm.len() == 1 && alarm[0].contains("cut_in has grown from 10000 to 12600"),
            "{alarm:?}"
        );
        assert_eq!(
            alarms("6.1", &tested("6.1.1", 100, false), &tested("6.1.1", 500, false)),
            [""; 0]
        );
    }

    #[test]
    fn the_readme_names_kernels_by_age_and_only_those_that_passed() {
        let all: All = [
            ("6.12".to_owned(), tested("6.12.117 (x)", 1, false)),
            ("6.1".to_owned(), tested("6.1.192 (y)", 1, false)),
            ("6.16".to_owned(), tested("6.16.12", 1, true)),
        ]
        .into();
        assert!(
            readme(&all, "").starts_with("Tested on Linux 6.1.192, 6.12.117 ("),
            "{}",
            readme(&all, "")
        );
        let page = page(&all, "");
        assert!(
            page.contains("| all | **failed** |") && page.contains("| cut_in | 1 / 100 |"),
            "{page}"
        );
    }

    #[test]
    fn a_row_of_older_programs_says_so_and_is_not_in_the_readme() {
        let older = Tested {
            programs_sha256: "0123456789".into(),
            ..tested("6.12.117", 1, false)
        };
        let all: All = [
            ("6.1".to_owned(), tested("6.1.192", 1, false)),
            ("6.12".to_owned(), older),
        ]
        .into();
        let text = page(&all, "");
        assert!(text.contains("| 6.12.117 | older: 01234567 |"), "{text}");
        assert!(text.contains("| 6.1.192 | **those that ship** |"), "{text}");
        assert!(readme(&all, "").starts_with("Tested on Linux 6.1.192 ("));
        assert!(readme(&all, "new").starts_with("Not yet tested"));
    }
}
