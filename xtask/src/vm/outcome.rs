//! Outcome of a machine's job, by its console.

use std::{fmt::Write as _, time::Duration};

use serde_json::Value;

use super::{job::Job, kernels::Kernel};

/// Program of the kernel peek, and the first kernel that has what it needs.
pub(super) const PEEK: &str = "peek_in";
const FIRST_WITH_PEEK: [u32; 2] = [5, 17];

/// Step of a job.
#[derive(Clone, Debug, Default)]
struct StepOutcome {
    name: String,
    /// Exit status; `None` where the step has not ended.
    exit: Option<i32>,
    passed: Vec<String>,
    failed: Vec<String>,
    skipped: Vec<String>,
    text: String,
}

/// Outcome of a machine's job.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) name: String,
    /// Version of the kernel, as `doctor` reports it.
    pub(super) version: String,
    /// Report of `doctor`.
    pub(super) doctor: Value,
    /// Whether programs are expected to be refused.
    pub(super) is_too_old: bool,
    steps: Vec<StepOutcome>,
    seconds: f64,
}

impl Outcome {
    pub(super) fn read(kernel: &Kernel, job: &Job, log: &str, took: Duration) -> Self {
        Self::read_named(kernel, &kernel.name, job, log, took)
    }

    pub(super) fn read_named(kernel: &Kernel, name: &str, job: &Job, log: &str, took: Duration) -> Self {
        let steps: Vec<StepOutcome> = job.steps.iter().map(|step| read_step(step, log)).collect();
        let doctor = steps
            .iter()
            .find(|step| step.name == "doctor")
            .map(|step| json(&step.text))
            .unwrap_or_default();
        let version = doctor["kernel"].as_str().unwrap_or(&kernel.version).to_owned();
        Self {
            name: name.to_owned(),
            version,
            doctor,
            is_too_old: kernel.is_too_old(),
            steps,
            seconds: took.as_secs_f64(),
        }
    }

    /// Returns each eBPF program with its verdict.
    pub(super) fn programs(&self) -> Vec<(&str, &Value)> {
        let all = self.doctor["programs"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        all.iter()
            .filter_map(|program| Some((program["program"].as_str()?, program)))
            .collect()
    }

    /// Returns each step with the number of tests that passed, and whether all is well.
    pub(super) fn steps(&self) -> Vec<(&str, usize, bool)> {
        let all = self.steps.iter();
        all.map(|step| (step.name.as_str(), step.passed.len(), self.wrong(step).is_empty()))
            .collect()
    }

    pub(super) fn passed(&self) -> usize {
        self.steps.iter().map(|step| step.passed.len()).sum::<usize>() + self.programs().len()
    }

    /// Failures of the job, a line each.
    pub(super) fn failures(&self) -> Vec<String> {
        let mut all: Vec<String> = self.steps.iter().flat_map(|step| self.wrong(step)).collect();
        for (program, verdict) in self.programs() {
            if !self.may_refuse(program) && !verdict["refused"].is_null() {
                let reason = verdict["refused"]["reason"].as_str().unwrap_or_default();
                all.push(format!("kernel {}: program {program} is refused: {reason}", self.name));
            }
        }
        if self.steps.iter().any(|step| step.name == "doctor") && self.programs().is_empty() {
            all.push(format!("kernel {}: doctor has reported no programs", self.name));
        }
        all
    }

    /// Whether the kernel is expected to refuse a program: old ones nearly all, those before 5.17 the kernel peek's.
    fn may_refuse(&self, program: &str) -> bool {
        let numbers: Vec<u32> = self
            .version
            .split(|c: char| !c.is_ascii_digit())
            .map_while(|part| part.parse().ok())
            .collect();
        self.is_too_old || program == PEEK && numbers < FIRST_WITH_PEEK.to_vec()
    }

    fn wrong(&self, step: &StepOutcome) -> Vec<String> {
        let of = |what: &str| format!("kernel {}: {}: {what}", self.name, step.name);
        let mut wrong: Vec<String> = step.failed.iter().map(|test| of(&format!("{test} failed"))).collect();
        wrong.extend(step.skipped.iter().map(|line| of(line)));
        match step.exit {
            None => wrong.push(of("it has not ended")),
            // "Degraded" is the expected result of `doctor` on most machines.
            Some(code) if step.name == "doctor" && code <= 1 => {}
            Some(0) if step.name != "doctor" && step.passed.is_empty() => wrong.push(of("no test was run")),
            Some(0) => {}
            Some(124 | 143) => wrong.push(of("it ran out of time")),
            Some(code) if wrong.is_empty() => wrong.push(of(&format!("it ended with {code}"))),
            Some(_) => {}
        }
        wrong
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("\nkernel {} ({}), {:.0} s\n", self.name, self.version, self.seconds);
        for (program, verdict) in self.programs() {
            let (accepted, refused) = (&verdict["accepted"], &verdict["refused"]);
            let _ = if refused.is_null() {
                writeln!(
                    text,
                    "  {program:<9} accepted, {} instructions walked, {} states",
                    accepted["instructions"], accepted["states"]
                )
            } else {
                writeln!(
                    text,
                    "  {program:<9} refused: {}",
                    refused["reason"].as_str().unwrap_or_default()
                )
            };
        }
        for (step, passed, ok) in self.steps() {
            let _ = writeln!(
                text,
                "  {step:<12} {} {passed} tests passed",
                if ok { "ok    " } else { "FAILED" }
            );
        }
        for failure in self.failures() {
            let _ = writeln!(text, "  ! {failure}");
        }
        text
    }
}

fn read_step(name: &str, log: &str) -> StepOutcome {
    let mut step = StepOutcome {
        name: name.to_owned(),
        ..StepOutcome::default()
    };
    let Some((_, rest)) = log.split_once(&format!("@@ begin {name}\n")) else {
        return step;
    };
    let end = format!("@@ end {name} ");
    step.text = match rest.split_once(&end) {
        Some((text, code)) => {
            step.exit = code.lines().next().and_then(|code| code.trim().parse().ok());
            text.to_owned()
        }
        None => rest.to_owned(),
    };
    for line in step.text.lines() {
        if let Some(rest) = line.strip_prefix("test ") {
            if let Some(test) = rest.strip_suffix(" ... ok") {
                step.passed.push(test.to_owned());
            } else if let Some(test) = rest.strip_suffix(" ... FAILED") {
                step.failed.push(test.to_owned());
            }
        } else if line.starts_with("SKIP ") {
            step.skipped.push(line.to_owned());
        }
    }
    step
}

/// Extracts the JSON document from a text that has other lines, too.
fn json(text: &str) -> Value {
    let from = text.find('{').unwrap_or_default();
    let to = text.rfind('}').map_or(text.len(), |at| at + 1);
    text.get(from..to)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Last lines of a console's output.
pub(super) fn tail(log: &str, lines: usize) -> String {
    let all: Vec<&str> = log.lines().collect();
    let mut text = all[all.len().saturating_sub(lines)..].join("\n");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{Depth, job};

    fn kernel() -> Kernel {
        Kernel {
            name: "6.1".into(),
            version: "6.1.192".into(),
            image: "vmlinuz".into(),
            modules: None,
        }
    }

    fn read(log: &str) -> Outcome {
        let kernel = kernel();
        Outcome::read(&kernel, &job::of(&kernel, Depth::Gate), log, Duration::from_secs(1))
    }

    const DOCTOR: &str = "@@ begin doctor\n{\"kernel\": \"6.1.192\", \"programs\": [{\"program\": \"steer\", \"accepted\": {\"instructions\": 3, \
                          \"states\": 1}}]}\n@@ end doctor 1\n";

    fn steps(packets: &str) -> String {
        let step = |name: &str, text: &str, code: i32| format!("@@ begin {name}\n{text}@@ end {name} {code}\n");
        let good = "test a::b ... ok\n";
        format!(
            "{DOCTOR}{}{}{}{packets}",
            step("scenario", good, 0),
            step("kernel-peek", good, 0),
            step("links", good, 0)
        )
    }

    #[test]
    fn a_job_whose_steps_all_passed_has_passed() {
        let outcome = read(&steps(
            "@@ begin packets\ntest c ... ok\ntest d ... ok\n@@ end packets 0\n",
        ));
        assert_eq!(outcome.failures(), [""; 0]);
        assert_eq!(outcome.passed(), 6);
    }

    #[test]
    fn a_step_that_is_not_known_to_have_passed_has_failed() {
        for (packets, part) in [
            ("@@ begin packets\ntest c ... FAILED\n@@ end packets 101\n", "c failed"),
            ("@@ begin packets\ntest c ... ok\n", "not ended"),
            ("@@ begin packets\ntest c ... ok\n@@ end packets 143\n", "out of time"),
            ("@@ begin packets\n@@ end packets 0\n", "no test was run"),
            (
                "@@ begin packets\ntest c ... ok\nSKIP c: no root\n@@ end packets 0\n",
                "SKIP c",
            ),
            ("", "not ended"),
        ] {
            let failures = read(&steps(packets)).failures();
            assert!(
                failures.len() == 1 && failures[0].contains(part),
                "{part}: {failures:?}"
            );
        }
        let refused = steps("@@ begin packets\ntest c ... ok\n@@ end packets 0\n").replace(
            "\"accepted\": {\"instructions\": 3, \"states\": 1}",
            "\"refused\": {\"reason\": \"too complex\"}",
        );
        assert!(read(&refused).failures()[0].contains("too complex"));
        // A kernel without the loops of the kernel peek refuses it, and a later one must not.
        let of_peek = refused.replace("\"steer\"", "\"peek_in\"");
        assert!(read(&of_peek).failures()[0].contains("too complex"));
        let earlier = of_peek.replace("6.1.192", "5.15.24");
        assert_eq!(read(&earlier).failures(), [""; 0]);
    }
}
