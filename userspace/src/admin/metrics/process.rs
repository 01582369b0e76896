//! Metrics of the process, with the names of Prometheus' own clients, so that existing dashboards and alerts work.

use std::fmt;
use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::MetricWriter;

/// Collector of the process' metrics.
#[derive(Debug)]
pub(super) struct ProcessMetrics;

/// Values of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    threads: u64,
    /// Clock ticks from the machine's start to the start of the process.
    started_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl ProcessStat {
    /// Parses the file: the fields after the name, which may contain blanks and brackets.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // proc(5) counts from 1; the first field here is its third.
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        Some(Self {
            threads: field(20)?,
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

impl Collector for ProcessMetrics {
    /// Writes the values that the kernel reports; missing ones are left out.
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = MetricWriter(encoder);
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            let used = usage.user_time() + usage.system_time();
            let seconds = used.num_microseconds() as f64 / 1e6;
            out.counter(
                "cpu_seconds",
                "Time of CPUs, in user and system mode",
                [(vec![], seconds)],
            )?;
        }
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        if let Some(stat) = ProcessStat::parse(&stat) {
            out.gauge("threads", "Threads", [(vec![], stat.threads as f64)])?;
            let bytes = stat.virtual_bytes as f64;
            out.gauge("virtual_memory_bytes", "Address space", [(vec![], bytes)])?;
            if let Some(page) = system(SysconfVar::PAGE_SIZE) {
                let bytes = stat.resident_pages as f64 * page;
                out.gauge("resident_memory_bytes", "Memory in use", [(vec![], bytes)])?;
            }
            if let (Some(booted), Some(per_second)) = (boot_seconds(), system(SysconfVar::CLK_TCK)) {
                let started = booted + stat.started_ticks as f64 / per_second;
                out.gauge(
                    "start_time_seconds",
                    "Start, in seconds since 1970",
                    [(vec![], started)],
                )?;
            }
        }
        if let Some(open) = open_descriptors() {
            out.gauge("open_fds", "Descriptors now", [(vec![], open as f64)])?;
        }
        if let Ok((most, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
            out.gauge("max_fds", "Most descriptors", [(vec![], most as f64)])?;
        }
        Ok(())
    }
}

fn open_descriptors() -> Option<usize> {
    const DIRECTORY: &str = "/proc/self/fd";
    // Linux 6.2 or later gives the number as the directory's size. Counting a hundred thousand entries takes time.
    let size = fs::metadata(DIRECTORY).ok()?.len();
    if size > 0 {
        return usize::try_from(size).ok();
    }
    // The directory itself uses one.
    Some(fs::read_dir(DIRECTORY).ok()?.count().saturating_sub(1))
}

fn system(variable: SysconfVar) -> Option<f64> {
    Some(sysconf(variable).ok()?? as f64)
}

/// Returns when the machine was started, in seconds since 1970.
fn boot_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_is_passed_over() {
        let text = "42 (a (b) c) S 1 42 42 0 -1 4194560 9 0 0 0 5 6 0 0 20 0 17 0 4242 123456 789 18446744073709551615";
        let expected = ProcessStat {
            threads: 17,
            started_ticks: 4242,
            virtual_bytes: 123_456,
            resident_pages: 789,
        };
        assert_eq!(ProcessStat::parse(text), Some(expected));
        assert_eq!(ProcessStat::parse("42 (short) S 1"), None);
    }
}
