//! CPU time and memory of the whole machine, from `/proc`.
//!
//! The balancer's own processes are not enough: work that the kernel does for them in softirqs and kernel threads is
//! charged to nobody, and it is most of what an eBPF datapath costs.

use std::time::Duration;

/// Counters of all CPUs in jiffies.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Cpu {
    /// Time in user space.
    pub(crate) user: u64,
    /// Time not idle, user space included.
    pub(crate) busy: u64,
    /// Time in softirqs, which is where packets are forwarded.
    pub(crate) softirq: u64,
    /// Time taken by the host of this virtual machine.
    pub(crate) steal: u64,
    /// Total time, idle included.
    pub(crate) total: u64,
}

impl Cpu {
    /// Reads the counters.
    pub(crate) fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Difference to earlier counters.
    pub(crate) fn since(&self, then: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(then.user),
            busy: self.busy.saturating_sub(then.busy),
            softirq: self.softirq.saturating_sub(then.softirq),
            steal: self.steal.saturating_sub(then.steal),
            total: self.total.saturating_sub(then.total),
        }
    }

    /// Part that `jiffies` are of the total time.
    pub(crate) fn part(&self, jiffies: u64) -> f64 {
        jiffies as f64 / self.total.max(1) as f64
    }

    /// Parses `/proc/stat`: user nice system idle iowait irq softirq steal; what guests use is in user already.
    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let mut n = [0; 8];
        for (value, word) in n.iter_mut().zip(line.split_whitespace().skip(1)) {
            *value = word.parse().unwrap_or(0);
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal] = n;
        let busy = user + nice + system + irq + softirq;
        Self {
            user: user + nice,
            busy,
            softirq,
            steal,
            total: busy + steal + idle + iowait,
        }
    }
}

/// Duration of `jiffies`; USER_HZ is 100 on every architecture we run on.
pub(crate) fn time(jiffies: u64) -> Duration {
    Duration::from_millis(jiffies * 10)
}

/// Kernel memory in bytes that holds sockets and maps of BPF programs among others: small things are slabs, large ones
/// `vmalloc`, and per-CPU maps are neither.
pub(crate) fn kernel_memory() -> u64 {
    kernel_part(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn kernel_part(meminfo: &str) -> u64 {
    let names = ["Slab:", "Percpu:", "VmallocUsed:"];
    names.iter().map(|name| field(meminfo, name)).sum::<u64>() * 1024
}

/// Number after a name at the start of a line; 0 if it is not there.
pub(crate) fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_all_but_idle_and_stolen() {
        let cpu = Cpu::parse("cpu  10 1 20 100 5 2 3 4 50 60\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        assert_eq!(
            cpu,
            Cpu {
                user: 11,
                busy: 36,
                softirq: 3,
                steal: 4,
                total: 145
            }
        );
        assert_eq!(cpu.since(&cpu), Cpu::default());
    }

    #[test]
    fn fields() {
        assert_eq!(field("a: 1 kB\nVmRSS:\t  42 kB\n", "VmRSS:"), 42);
        assert_eq!(field("", "VmRSS:"), 0);
    }

    #[test]
    fn kernel_memory_is_of_three_kinds() {
        let meminfo = "MemFree: 9 kB\nSlab: 1 kB\nVmallocTotal: 9 kB\nVmallocUsed: 2 kB\nPercpu: 4 kB\n";
        assert_eq!(kernel_part(meminfo), 7 * 1024);
    }
}
