//! Summary of a test run: results counted from cargo's output, and the table at the end.

use std::fmt::Write as _;

#[derive(Default)]
pub(super) struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Lines of skipped tests: why a test was skipped is the interesting part.
    skips: Vec<String>,
}

impl Counts {
    /// Reads one line of output; most are not results.
    pub(super) fn read(&mut self, line: &str) {
        // nextest indents the output of tests.
        if let Some(skip) = line.trim_start().strip_prefix("SKIP ") {
            // A test that is run by two targets, or prints its reason twice, is skipped once.
            let skip = format!("SKIP {skip}");
            if !self.skips.contains(&skip) {
                self.skips.push(skip);
            }
        } else if let Some((_, result)) = line.split_once(" tests run: ") {
            let number = |what: &str| {
                let part = result.split(',').find(|part| part.contains(what))?;
                part.split_whitespace().next()?.parse().ok()
            };
            self.passed += number(" passed").unwrap_or(0);
            self.failed += number(" failed").unwrap_or(0) + number(" timed out").unwrap_or(0);
        } else if let Some(result) = line.strip_prefix("test result: ") {
            let number = |what: &str| {
                result
                    .split([';', '.'])
                    .find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
            };
            self.passed += number(" passed").unwrap_or(0);
            self.failed += number(" failed").unwrap_or(0);
            self.ignored += number(" ignored").unwrap_or(0);
        }
    }

    /// Adds tests that have passed by another runner.
    pub(super) const fn add(&mut self, passed: usize) {
        self.passed += passed;
    }

    /// Line of the counts. A test that skips itself has passed for libtest; here it has not.
    fn line(&self) -> String {
        let skipped = self.skips.len();
        let passed = self.passed.saturating_sub(skipped);
        format!(
            "{passed} passed, {} failed, {} skipped",
            self.failed,
            skipped + self.ignored
        )
    }
}

#[derive(Default)]
pub(super) struct Summary {
    rows: Vec<(String, &'static str, f64)>,
}

impl Summary {
    pub(super) fn add(&mut self, stage: String, state: &'static str, seconds: f64) {
        self.rows.push((stage, state, seconds));
    }

    pub(super) fn text(&self, counts: &Counts) -> String {
        let mut text = String::from("\n== summary ==\n");
        for (stage, state, seconds) in &self.rows {
            let _ = writeln!(text, "{stage:<8} {state:<8} {seconds:>8.1} s");
        }
        for skip in &counts.skips {
            let _ = writeln!(text, "{skip}");
        }
        let _ = writeln!(text, "{}", counts.line());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed_and_a_skip_is_no_pass() {
        let mut counts = Counts::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "SKIP steers_a_syn: needs root",
            "    SKIP steers_a_syn: needs root",
            "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        ] {
            counts.read(line);
        }
        assert_eq!(counts.line(), "6 passed, 2 failed, 2 skipped");
        counts.read("     Summary [  26.818s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 205 skipped");
        counts.read("     Summary [  91.172s] 157 tests run: 157 passed, 0 skipped");
        assert_eq!(counts.line(), "166 passed, 4 failed, 2 skipped");
        let mut summary = Summary::default();
        summary.add("unit".to_owned(), "FAILED", 1.25);
        let text = summary.text(&counts);
        assert!(text.contains("unit     FAILED        1.2 s"), "{text}");
        assert!(
            text.ends_with("SKIP steers_a_syn: needs root\n166 passed, 4 failed, 2 skipped\n"),
            "{text}"
        );
    }
}
