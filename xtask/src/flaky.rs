//! `flaky`: repeats tests while the machine is loaded, and reports how often each failed.
//!
//! A test that fails once in a hundred runs shows a fault of the product or of the test: this finds it before a merge
//! does.

use std::{
    collections::BTreeMap,
    process::{Child, Command, Stdio},
    thread::available_parallelism,
    time::Instant,
};

use anyhow::{Result, bail, ensure};

use crate::test;

#[derive(clap::Args)]
pub(crate) struct FlakyArgs {
    /// Filter of nextest, such as `test(/^rotate::/)`, or a part of tests' names [default: all tests of a merge]
    filter: Option<String>,
    /// How often each test runs
    #[arg(long, value_name = "N", default_value_t = 20)]
    times: u32,
    /// Programs of tests
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "e2e,kernel,keepalived"
    )]
    programs: Vec<String>,
    /// Busy loops beside the tests [default: one for each CPU]
    #[arg(long, value_name = "N")]
    busy: Option<usize>,
}

/// Results of a test over all rounds.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Results {
    passed: u32,
    failed: u32,
}

type Table = BTreeMap<String, Results>;

pub(crate) fn run(args: &FlakyArgs) -> Result<()> {
    ensure!(args.times > 0, "--times: at least 1");
    let busy = args
        .busy
        .unwrap_or_else(|| available_parallelism().map_or(2, usize::from));
    let filter = args.filter.as_deref().map(expression);
    let prepared = test::Repeated::prepare()?;
    let _load: Vec<Busy> = (0..busy).map(|_| Busy::start()).collect::<Result<_>>()?;
    let mut table = Table::new();
    for round in 1..=args.times {
        let start = Instant::now();
        for program in &args.programs {
            // nextest names those that failed once more after its summary.
            let mut is_over = false;
            let mut each = |line: &str| {
                is_over |= line.trim_start().starts_with("Summary [");
                if !is_over {
                    read(line, &mut table);
                }
            };
            // A failed round goes into the table, which counts them.
            let _ = prepared.run(program, filter.as_deref(), &mut each);
        }
        println!(
            "\n== round {round} of {}, {:.0} s, beside {busy} busy loops: {} tests, {} have failed so far ==",
            args.times,
            start.elapsed().as_secs_f64(),
            table.len(),
            failed(&table).count()
        );
    }
    ensure!(!table.is_empty(), "no test has run: is the filter right?");
    print!("{}", report(&table));
    match failed(&table).count() {
        0 => Ok(()),
        count => bail!("{count} of {} tests failed at least once", table.len()),
    }
}

/// A word matches part of a name; a filter with parentheses is an expression of nextest's.
fn expression(filter: &str) -> String {
    if filter.contains('(') {
        filter.to_owned()
    } else {
        format!("test({filter})")
    }
}

/// Reads a line of nextest's, such as `PASS [   0.103s] ( 1/20) signalbox::e2e rotate::hosts::one`.
fn read(line: &str, table: &mut Table) {
    let mut words = line.split_whitespace();
    let passed = match words.next() {
        Some("PASS") => true,
        Some("FAIL" | "TIMEOUT" | "SIGABRT" | "SIGSEGV" | "SIGKILL") => false,
        _ => return,
    };
    let Some((_, rest)) = line.split_once("s] ") else {
        return;
    };
    // A counter may come in between.
    let rest = rest.trim_start();
    let name = match rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")) {
        Some((_, name)) => name,
        None => rest,
    };
    let results = table.entry(name.trim().to_owned()).or_default();
    if passed {
        results.passed += 1;
    } else {
        results.failed += 1;
    }
}

fn failed(table: &Table) -> impl Iterator<Item = (&String, &Results)> {
    table.iter().filter(|(_, results)| results.failed > 0)
}

fn report(table: &Table) -> String {
    let mut text = String::from("\n");
    for (name, results) in failed(table) {
        let runs = results.passed + results.failed;
        text += &format!("{:>4} of {runs} failed  {name}\n", results.failed);
    }
    let runs: u32 = table.values().map(|results| results.passed + results.failed).sum();
    text += &format!(
        "{} tests, {runs} runs, {} tests failed at least once\n",
        table.len(),
        failed(table).count()
    );
    text
}

/// A loop that keeps a CPU busy, until dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_test_are_counted_over_rounds() {
        let mut table = Table::new();
        for line in [
            "        PASS [   0.103s] (  1/620) signalbox::e2e rotate::hosts::one",
            "        FAIL [  20.103s] (  2/620) signalbox::e2e rotate::hosts::two",
            "     TIMEOUT [ 600.103s] signalbox::e2e rotate::hosts::two",
            "        PASS [   1.000s] signalbox::e2e rotate::hosts::two",
            "        SLOW [> 120.000s] signalbox::e2e rotate::hosts::one",
            "     Summary [  26.818s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 205 skipped",
            "    a test that says FAIL itself",
        ] {
            read(line, &mut table);
        }
        let of = |passed, failed| Results { passed, failed };
        assert_eq!(table["signalbox::e2e rotate::hosts::one"], of(1, 0));
        assert_eq!(table["signalbox::e2e rotate::hosts::two"], of(1, 2));
        let text = report(&table);
        assert!(
            text.contains("2 of 3 failed  signalbox::e2e rotate::hosts::two"),
            "{text}"
        );
        assert!(
            text.ends_with("2 tests, 4 runs, 1 tests failed at least once\n"),
            "{text}"
        );
    }

    #[test]
    fn a_word_is_a_part_of_names() {
        assert_eq!(expression("rotate"), "test(rotate)");
        assert_eq!(expression("test(/^rotate::/)"), "test(/^rotate::/)");
    }
}
