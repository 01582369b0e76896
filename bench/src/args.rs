//! The command line, and the [`BenchPlan`] that it describes.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};

use crate::campaign::programs;
use crate::contender::{Contender, Rival, Setup};
use crate::playground;
use crate::product::{MEASURED, signalbox};
use crate::scenario::Scenario;
use crate::suite::Suite;

/// Compare signalbox with HAProxy, nginx, Envoy, Traefik, Caddy and plain forwarding, in separate network namespaces.
#[derive(Parser)]
#[command(
    name = "cargo xtask bench",
    bin_name = "cargo xtask bench",
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) instead: Option<BenchCommand>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Options of a run.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Two short rounds: under 10 minutes, for a first look
    #[arg(long)]
    quick: bool,
    /// Rounds; an even number, so that each order is also run backwards [default: 4, quick: 2]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Length of a measurement [default: 1.5, quick: 0.6]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Only this scenario (such as `unique-100`) or family (`unique`); may be given several times
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
    /// Contenders that take part [default: all except those that must be named]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    contenders: Vec<Contender>,
    /// Threads of the balancers; several numbers make several contenders [default: 2 everywhere, and 1 in the main
    /// scenarios; quick: one for each CPU]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    threads: Vec<usize>,
    /// The signalbox to run, instead of one built from this checkout
    #[arg(long, value_name = "PATH")]
    signalbox: Option<PathBuf>,
    /// Path of another build of signalbox, which takes part as `signalbox-other`
    #[arg(long, value_name = "PATH")]
    against: Option<PathBuf>,
    /// Directory for results [default: bench/results; of subcommands: a subdirectory of it]
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,
    /// Do not install missing packages
    #[arg(long)]
    pub(crate) no_install: bool,
}

/// Subcommands instead of a benchmark of connections.
#[derive(Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure HTTP by request, in plain text and with TLS that ends at the balancer
    #[command(override_usage = "cargo xtask bench http [OPTIONS]")]
    Http(RunArgs),
    /// Measure new connections under each condition that disables signalbox's fast path
    #[command(override_usage = "cargo xtask bench conditions [OPTIONS]")]
    Conditions(RunArgs),
    /// Measure the cost and the delay of replication of flows to a second node
    #[command(override_usage = "cargo xtask bench ha [OPTIONS]")]
    Ha(RunArgs),
    /// Measure new connections to ten hosts, of which one fails
    #[command(override_usage = "cargo xtask bench failures [OPTIONS]")]
    Failures(RunArgs),
    /// Measure the time of each part of a connection
    #[command(override_usage = "cargo xtask bench anatomy [OPTIONS]")]
    Anatomy(RunArgs),
    #[command(override_usage = "cargo xtask lab [OPTIONS]")]
    Lab(playground::PlaygroundArgs),
    /// Measure the cost of packets of layer-4 services
    #[command(override_usage = "cargo xtask bench xdp [OPTIONS]")]
    Xdp(crate::xdp::XdpArgs),
}

/// Plan of a run.
pub(crate) struct BenchPlan {
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) setups: Vec<Setup>,
    /// Whether fewer than the most threads are only for the main scenarios.
    pub(crate) spare_time: bool,
    pub(crate) rounds: usize,
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

/// Time to start and stop a contender, on top of warm-up and measurement.
const RUN_OVERHEAD_INTERVAL: Duration = Duration::from_millis(450);

/// Time of a measurement that takes as long as it needs: 9000 connections, or 1000 routes.
const UNTIMED_INTERVAL: Duration = Duration::from_secs(6);

impl RunArgs {
    /// Checks the arguments, and builds signalbox where it is needed.
    pub(crate) fn plan(&self, suite: Suite) -> Result<BenchPlan> {
        let (rounds, seconds, warm_up) = if self.quick { (2, 0.6, 250) } else { (4, 1.5, 750) };
        let seconds = self.seconds.unwrap_or(seconds);
        ensure!((0.2..=3600.0).contains(&seconds), "--seconds: from 0.2 to 3600");
        let rounds = self.rounds.unwrap_or(rounds);
        ensure!(rounds > 0, "--rounds: at least 1");
        Ok(BenchPlan {
            scenarios: self.scenarios(suite)?,
            setups: self.setups(suite)?,
            spare_time: self.threads.is_empty(),
            rounds,
            warm_up: Duration::from_millis(warm_up),
            length: Duration::from_secs_f64(seconds),
        })
    }

    fn scenarios(&self, suite: Suite) -> Result<Vec<Scenario>> {
        let all = suite.scenarios();
        for word in &self.only {
            if !all.iter().any(|s| s.is_meant(word)) {
                let names: Vec<_> = all.iter().map(|s| s.name).collect();
                bail!("there is no scenario `{word}`; the scenarios are: {}", names.join(", "));
            }
        }
        let wanted = |s: &Scenario| self.only.is_empty() || self.only.iter().any(|word| s.is_meant(word));
        Ok(all.iter().filter(|s| wanted(s)).copied().collect())
    }

    fn setups(&self, suite: Suite) -> Result<Vec<Setup>> {
        let contenders = if self.contenders.is_empty() {
            suite.contenders().split(',').map(str::parse).collect::<Result<_>>()?
        } else {
            self.contenders.clone()
        };
        let threads = match self.threads.as_slice() {
            [] if self.quick => vec![std::thread::available_parallelism()?.get()],
            [] => vec![1, 2],
            some => some.to_vec(),
        };
        ensure!(!threads.contains(&0), "--threads: at least 1");
        let ours = contenders.iter().any(|c| c.is_signalbox() && *c != Contender::Other);
        let ours = if ours {
            signalbox(self.signalbox.as_deref(), MEASURED)?
        } else {
            PathBuf::new()
        };
        let against = self
            .against
            .as_deref()
            .map(|path| signalbox(Some(path), MEASURED))
            .transpose()?;
        let others = against.iter().map(|_| &Contender::Other);
        let mut setups = Vec::new();
        for contender in contenders.iter().filter(|c| **c != Contender::Other).chain(others) {
            // Forwarding has no threads: once is enough.
            let threads = if *contender == Contender::Direct {
                &[0][..]
            } else {
                &threads
            };
            setups.extend(threads.iter().map(|&threads| Setup {
                contender: contender.clone(),
                threads,
                suite,
                signalbox: match (contender, &against) {
                    (Contender::Other, Some(other)) => other.clone(),
                    _ => ours.clone(),
                },
            }));
        }
        Ok(setups)
    }
}

impl BenchPlan {
    /// Estimates how long the run takes.
    pub(crate) fn estimate(&self) -> Duration {
        let one = |s: &Scenario| {
            let length = if s.is_timed() {
                self.warm_up + self.length
            } else {
                UNTIMED_INTERVAL
            };
            (length + RUN_OVERHEAD_INTERVAL) * self.rounds_of(s) as u32 * self.setups_of(s).len() as u32
        };
        let (time, scenarios) = programs::TIME;
        let programs = (time + RUN_OVERHEAD_INTERVAL) * scenarios as u32 * self.with_programs().count() as u32;
        self.scenarios.iter().map(one).sum::<Duration>() + programs
    }

    /// Contenders that take part in a scenario.
    pub(crate) fn setups_of(&self, scenario: &Scenario) -> Vec<Setup> {
        let most = self.most_threads();
        let all = !self.spare_time || scenario.is_main();
        // Splicing moves bytes: memory of connections that are idle and routes that change are those of `haproxy`.
        let fits = |s: &Setup| match s.contender {
            Contender::Direct => scenario.is_for_hosts(),
            Contender::Rival(Rival::HaproxySplice) => scenario.is_timed(),
            _ => true,
        };
        let takes_part = |s: &&Setup| fits(s) && (all || s.threads == most || s.contender == Contender::Direct);
        self.setups.iter().filter(takes_part).cloned().collect()
    }

    /// Contenders whose BPF programs are measured.
    pub(crate) fn with_programs(&self) -> impl Iterator<Item = &Setup> {
        let most = self.most_threads();
        let ours = |s: &&Setup| s.contender.is_signalbox();
        self.setups.iter().filter(ours).filter(move |s| s.threads == most)
    }

    /// Largest number of threads of any contender.
    fn most_threads(&self) -> usize {
        self.setups.iter().map(|s| s.threads).max().unwrap_or(0)
    }

    /// Number of rounds of a scenario. Memory hardly varies, so two rounds are enough.
    pub(crate) fn rounds_of(&self, scenario: &Scenario) -> usize {
        if scenario.is_timed() {
            self.rounds
        } else {
            self.rounds.min(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(words: &str) -> BenchPlan {
        let words = format!("bench --signalbox /proc/self/exe {words}");
        BenchArgs::parse_from(words.split_whitespace())
            .run
            .plan(Suite::Connections)
            .unwrap()
    }

    #[test]
    fn the_promised_times_are_kept() {
        assert!(plan("").estimate() < Duration::from_secs(36 * 60));
        assert!(plan("--threads 2 --quick").estimate() < Duration::from_secs(10 * 60));
        assert!(plan("").rounds >= 4 && plan("").rounds.is_multiple_of(2));
    }

    #[test]
    fn each_number_of_threads_is_a_contender_but_for_forwarding() {
        let setups = plan("--contenders direct,nginx --threads 1,2").setups;
        let names: Vec<_> = setups.iter().map(|s| (s.contender.to_string(), s.threads)).collect();
        assert_eq!(names, [("direct".into(), 0), ("nginx".into(), 1), ("nginx".into(), 2)]);
    }

    #[test]
    fn one_thread_is_for_the_main_scenarios_unless_asked_for() {
        let count = |plan: &BenchPlan, name: &str| {
            let scenario = plan.scenarios.iter().find(|s| s.name == name).unwrap();
            plan.setups_of(scenario).len()
        };
        let (spare, all) = (plan(""), plan("--threads 1,2"));
        assert_eq!((count(&spare, "bulk-4"), count(&spare, "bulk-1")), (19, 10));
        assert_eq!((count(&all, "bulk-4"), count(&all, "bulk-1")), (19, 19));
    }

    #[test]
    fn unknown_scenarios_are_refused() {
        let refuses = |suite: Suite, known: &str| {
            let args = BenchArgs::parse_from(["bench", "--only", known, "--only", "nothing"]);
            args.run.plan(suite).is_err_and(|e| e.to_string().contains("`nothing`"))
        };
        assert!(refuses(Suite::Connections, "reused") && refuses(Suite::Http, "edge"));
    }
}
