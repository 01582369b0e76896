//! `check-commits`: messages of commits have the form that CONTRIBUTING.md asks for.

use anyhow::{Result, bail};

use crate::exec::Run;

/// Last commit that was made before the rule.
const RULE_SINCE: &str = "5dfb9046b258dc50540e4152d5639f080d9d198c";

/// Longest subject, in columns.
const MAX_SUBJECT: usize = 72;

/// Longest line of a body, in columns: `git log` indents it by four.
const MAX_BODY: usize = 90;

/// Separates messages in the output of `git log`.
const SEPARATOR: char = '\u{1e}';

/// Prints each fault of a message, and fails if there is one.
pub(crate) fn run() -> Result<()> {
    let range = format!("{RULE_SINCE}..HEAD");
    let log = Run::new("git")?
        .args(["log", "--no-merges", "--format=%h %B%x1e", &range])
        .answer();
    let Some(log) = log else {
        println!("SKIP check-commits: this checkout lacks commit {RULE_SINCE}");
        return Ok(());
    };
    let faults: Vec<String> = log
        .split(SEPARATOR)
        .filter_map(|text| text.trim().split_once(' '))
        .flat_map(check)
        .collect();
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults of commit messages: `git rebase -i` and reword", faults.len());
    }
    Ok(())
}

/// Returns the faults of a commit's message.
fn check((commit, message): (&str, &str)) -> Vec<String> {
    let mut lines = message.lines();
    let subject = lines.next().unwrap_or_default();
    let columns = subject.chars().count();
    let mut faults = Vec::new();
    if columns > MAX_SUBJECT {
        faults.push(format!(
            "a subject of {columns} columns, shorten it to {MAX_SUBJECT}: {subject}"
        ));
    }
    let area = subject.split_once(": ").map(|(area, _)| area);
    if area.is_none_or(|area| area.is_empty() || area.contains(char::is_uppercase) && area != "README") {
        faults.push(format!("write the subject as `area: what changed`: {subject}"));
    }
    if subject.ends_with('.') {
        faults.push(format!("a subject ends without a full stop: {subject}"));
    }
    if subject.starts_with("fixup!") || subject.starts_with("squash!") {
        faults.push(format!("squash it (`git rebase -i --autosquash`): {subject}"));
    }
    if lines.next().is_some_and(|second| !second.is_empty()) {
        faults.push(format!("leave the line after the subject empty: {subject}"));
    }
    faults.extend(
        lines
            .filter(|line| line.chars().count() > MAX_BODY && line.contains(' '))
            .map(|line| format!("break the line, of at most {MAX_BODY} columns: {line}")),
    );
    faults
        .into_iter()
        .map(|fault| format!("commit {commit}: {fault}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{MAX_BODY, MAX_SUBJECT, check};

    #[test]
    fn a_message_in_form_passes_and_each_fault_is_told() {
        let good = "cut: programs free a flow once\n\nTwo CPUs could free it at the same time.\n";
        assert_eq!(check(("abc", good)), Vec::<String>::new());
        assert_eq!(check(("abc", "README: two commands")), Vec::<String>::new());
        let long = format!("cut: {}", "x".repeat(MAX_SUBJECT));
        let body = format!("cut: a thing\n\n{}\n", "word ".repeat(MAX_BODY));
        for (message, told) in [
            (long.as_str(), "72"),
            ("programs free a flow once", "area: what changed"),
            ("Cut: programs free a flow once", "area: what changed"),
            ("cut: programs free a flow once.", "full stop"),
            ("fixup! cut: programs free a flow once", "autosquash"),
            ("cut: a thing\nand its body", "empty"),
            (&body, "break the line"),
        ] {
            let faults = check(("abc", message));
            assert_eq!(faults.len(), 1, "{message}: {faults:?}");
            assert!(faults[0].contains(told), "{message}: {faults:?}");
        }
    }
}
