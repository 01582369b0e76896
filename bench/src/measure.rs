//! Measurement: work done in a window, and CPU time and memory that the machine spent on it.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use signalbox_lab::Cpu;

use crate::histogram::Histogram;
use crate::interrupt;
use crate::load::anatomy::Parts;
use crate::load::{Errors, Window};
use crate::machine;
use crate::process;

/// Result of one turn of one contender. Numbers that do not apply are NaN here and null in JSON.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    /// Requests or GB, by the scenario's unit.
    pub(crate) work: f64,
    /// Requests per second, or Gbit/s.
    pub(crate) rate: f64,
    /// Rate of answers' bytes, in Gbit/s.
    pub(crate) gbit: f64,
    /// Requests per second that were due, in an open loop.
    pub(crate) offered: Option<f64>,
    /// Latency of requests.
    pub(crate) latency: Option<Latency>,
    /// CPU time of the whole machine in µs, for each unit of work.
    pub(crate) cpu: f64,
    /// CPU time that is charged to the balancer's processes in µs, for each unit of work.
    pub(crate) own_cpu: f64,
    /// Busy part of the machine.
    pub(crate) busy: f64,
    /// Part of the machine that the host of this virtual machine took.
    pub(crate) steal: f64,
    /// Part of the machine that foreign programs used in user space.
    pub(crate) foreign: f64,
    /// Memory of idle connections.
    pub(crate) memory: Option<Memory>,
    /// Replication of flows to a second node.
    pub(crate) replication: Option<Replication>,
    /// Change of routes.
    pub(crate) change: Option<Change>,
    /// Percentage of connections that got no answer while a host failed.
    pub(crate) lost: Option<f64>,
    /// Times between the packets of a connection.
    pub(crate) anatomy: Option<Parts>,
    /// Errors of the turn.
    pub(crate) errors: Errors,
}

/// Latency of requests, in µs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// The slowest of all.
    pub(crate) slowest: f64,
}

/// Memory of idle connections, in bytes for each connection.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Memory {
    /// Resident memory of the balancer's processes.
    pub(crate) resident: f64,
    /// Kernel memory of the whole machine, the sockets of client and host included, and maps of BPF programs.
    pub(crate) kernel: f64,
}

/// Replication of flows to a second node.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Replication {
    /// Flows per second that the second node received.
    pub(crate) flows: f64,
    /// Bytes for each of them.
    pub(crate) bytes: f64,
    /// Mean time from a flow's hand-off until the second node had it, in µs.
    pub(crate) mean_lag: f64,
    /// Bound in µs of the histogram's bucket below which 99 of 100 such times were.
    pub(crate) p99_lag: f64,
}

/// Change of routes, times in µs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Change {
    /// Time from the change until all new names answered.
    pub(crate) until_all: f64,
    /// Longest latency of the load during the change.
    pub(crate) worst: f64,
    /// Requests of the load that failed.
    pub(crate) failed: f64,
    /// Resident memory of the balancer's processes after it, in bytes.
    pub(crate) resident: f64,
}

/// Part of stolen or foreign time above which a measurement is marked.
const DISTURBED: f64 = 0.02;

impl Sample {
    /// Sample of a turn that gave only an error.
    pub(crate) fn failed(why: String) -> Self {
        let mut errors = Errors::default();
        errors.add(why);
        Self {
            work: f64::NAN,
            rate: f64::NAN,
            gbit: f64::NAN,
            offered: None,
            latency: None,
            cpu: f64::NAN,
            own_cpu: f64::NAN,
            busy: f64::NAN,
            steal: f64::NAN,
            foreign: f64::NAN,
            memory: None,
            replication: None,
            change: None,
            lost: None,
            anatomy: None,
            errors,
        }
    }

    /// Sample of `work` done in `time`. CPU time was `spent` in about the same time, so it is taken per second. The
    /// caller adds `errors`.
    pub(crate) fn of(work: f64, time: Duration, spent: &Spent) -> Self {
        let rate = work / time.as_secs_f64();
        let each = |cpu: Duration| {
            if work > 0.0 {
                cpu.as_secs_f64() / spent.elapsed.as_secs_f64() * 1e6 / rate
            } else {
                f64::NAN
            }
        };
        Self {
            work,
            rate,
            cpu: each(spent.machine),
            own_cpu: each(spent.balancer),
            busy: spent.busy,
            steal: spent.steal,
            foreign: spent.foreign,
            errors: Errors::default(),
            ..Self::failed(String::new())
        }
    }

    /// Whether others used the machine at the same time.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.steal > DISTURBED || self.foreign > DISTURBED
    }
}

impl Latency {
    /// Mean and quantiles of a histogram; `None` if it is empty.
    pub(crate) fn of(histogram: &Histogram) -> Option<Self> {
        let micros = |d: Duration| d.as_secs_f64() * 1e6;
        Some(Self {
            mean: micros(histogram.mean()?),
            p50: micros(histogram.quantile(0.5)?),
            p99: micros(histogram.quantile(0.99)?),
            p999: micros(histogram.quantile(0.999)?),
            slowest: micros(histogram.quantile(1.0)?),
        })
    }
}

/// CPU time spent in a window.
#[derive(Debug)]
pub(crate) struct Spent {
    /// Time between the two readings: on a busy machine neither comes quite in time.
    pub(crate) elapsed: Duration,
    machine: Duration,
    balancer: Duration,
    busy: f64,
    steal: f64,
    foreign: f64,
}

/// Meter of CPU time, which knows which processes belong to the balancer.
pub(crate) struct Meter {
    /// Pids of the balancer.
    pub(crate) balancer: Vec<u32>,
    /// Pids of the hosts.
    pub(crate) hosts: Vec<u32>,
}

impl Meter {
    /// Waits until the window has passed: the CPU time spent in it, and the difference of `counter` over it.
    pub(crate) fn watch(&self, window: Window, counter: impl Fn() -> u64) -> Result<(Spent, u64)> {
        let ours: Vec<_> = self
            .hosts
            .iter()
            .chain(&self.balancer)
            .copied()
            .chain([std::process::id()])
            .collect();
        let read = || {
            (
                Instant::now(),
                Cpu::now(),
                process::jiffies(&self.balancer),
                process::jiffies(&ours).0,
                counter(),
            )
        };
        interrupt::sleep_until(window.start)?;
        let (began, cpu, (user, system), our_user, count) = read();
        interrupt::sleep_until(window.end)?;
        let (ended, cpu_after, (user_after, system_after), our_user_after, count_after) = read();
        let cpu = cpu_after.since(&cpu);
        let spent = Spent {
            elapsed: ended - began,
            machine: machine::time(cpu.busy),
            balancer: machine::time((user_after + system_after).saturating_sub(user + system)),
            busy: cpu.part(cpu.busy),
            steal: cpu.part(cpu.steal),
            foreign: cpu.part(cpu.user.saturating_sub(our_user_after.saturating_sub(our_user))),
        };
        Ok((spent, count_after - count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_is_by_the_second_and_not_by_the_window() {
        let spent = Spent {
            elapsed: Duration::from_millis(1100),
            machine: Duration::from_millis(2200),
            balancer: Duration::from_millis(550),
            busy: 1.0,
            steal: 0.0,
            foreign: 0.0,
        };
        let sample = Sample::of(1000.0, Duration::from_secs(1), &spent);
        assert_eq!((sample.rate, sample.errors.total()), (1000.0, 0));
        assert!((sample.cpu - 2000.0).abs() < 1e-6 && (sample.own_cpu - 500.0).abs() < 1e-6);
        assert!(Sample::of(0.0, Duration::from_secs(1), &spent).cpu.is_nan());
    }
}
