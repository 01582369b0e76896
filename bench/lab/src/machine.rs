//! CPU time of the whole machine, and memory and end of a process, from `/proc`.

/// Counters of all CPUs in jiffies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// Time in user space.
    pub user: u64,
    /// Time in system calls.
    pub system: u64,
    /// Time not idle: in user space, system calls and interrupts.
    pub busy: u64,
    /// Time in softirqs, which is where packets are forwarded.
    pub softirq: u64,
    /// Time taken by the host of this virtual machine.
    pub steal: u64,
    /// Total time, idle included.
    pub total: u64,
}

impl Cpu {
    /// Reads the counters.
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Difference to earlier counters.
    #[must_use]
    pub fn since(&self, then: &Self) -> Self {
        Self {
            user: self.user.saturating_sub(then.user),
            system: self.system.saturating_sub(then.system),
            busy: self.busy.saturating_sub(then.busy),
            softirq: self.softirq.saturating_sub(then.softirq),
            steal: self.steal.saturating_sub(then.steal),
            total: self.total.saturating_sub(then.total),
        }
    }

    /// Part that `jiffies` are of the total time.
    pub fn part(&self, jiffies: u64) -> f64 {
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
            system,
            busy,
            softirq,
            steal,
            total: busy + steal + idle + iowait,
        }
    }
}

/// Resident memory of a process in bytes; 0 if it has ended.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "VmRSS:") * 1024
}

/// Whether a process runs. A zombie, whose parent has not waited for it yet, has a number but no program any more.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

/// Number after a name at the start of a line; 0 if it is not there.
pub fn field(text: &str, name: &str) -> u64 {
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
                system: 20,
                busy: 36,
                softirq: 3,
                steal: 4,
                total: 145
            }
        );
        assert_eq!(cpu.since(&cpu), Cpu::default());
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        let ended = crate::eventually(std::time::Duration::from_secs(20), || !is_alive(child.id()));
        assert!(ended, "a zombie has no program");
        child.wait().unwrap();
    }

    #[test]
    fn fields() {
        assert_eq!(field("a: 1 kB\nVmRSS:\t  42 kB\n", "VmRSS:"), 42);
        assert_eq!(field("", "VmRSS:"), 0);
    }
}
