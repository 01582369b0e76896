//! Memory of a namespace's TCP, and the time of the machine's CPUs.

use std::fmt;

use signalbox_lab::Cpu;

use super::Ns;

/// Requests for connections that wait in a namespace for the client's acknowledgement.
pub(crate) fn half_open(ns: &Ns) -> usize {
    const SYN_RECV: &str = "03";
    let state = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    let count = |table: &str| {
        let lines = table.lines().skip(1);
        lines.filter(|line| state(line).as_deref() == Some(SYN_RECV)).count()
    };
    count(&read(ns, "tcp")) + count(&read(ns, "tcp6"))
}

/// Packets of connections that a namespace has dropped because their timestamps were older than the last one's.
pub(crate) fn sockets(ns: &Ns) -> u64 {
    tcp_sockets(ns, "inuse")
}

/// TCP sockets of a namespace that are in TIME_WAIT.
pub(crate) fn time_waits(ns: &Ns) -> u64 {
    tcp_sockets(ns, "tw")
}

fn tcp_sockets(ns: &Ns, state: &str) -> u64 {
    let text = read(ns, "sockstat");
    let line = text.lines().find(|line| line.starts_with("TCP: ")).unwrap();
    let number = line.split(' ').skip_while(|word| *word != state).nth(1);
    number.unwrap().parse().unwrap()
}

/// A file of the namespace's own part of /proc: the thread's, because `/proc/net` is the process's.
pub(crate) fn too_old(ns: &Ns) -> u64 {
    let text = read(ns, "netstat");
    // A line of names, and a line of numbers in the same order.
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let mut both = names.split(' ').zip(numbers.split(' '));
    let (_, number) = both.find(|(name, _)| *name == "PAWSEstab").unwrap();
    number.parse().unwrap()
}

/// A file of the namespace's own part of /proc: that of the thread, for `/proc/net` is that of the process.
fn read(ns: &Ns, name: &str) -> String {
    ns.run(|| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap())
}

/// Time of the machine's CPUs since some moment.
pub(crate) struct Busy(Cpu);

impl Busy {
    /// Begins to count.
    pub(crate) fn now() -> Self {
        Self(Cpu::now())
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = Cpu::now().since(&self.0);
        let share = |jiffies| 100.0 * cpu.part(jiffies);
        write!(
            f,
            "all CPUs: {:.0}% softirq, {:.0}% system, {:.0}% user, {:.0}% idle",
            share(cpu.softirq),
            share(cpu.system),
            share(cpu.user),
            share(cpu.total - cpu.busy - cpu.steal)
        )
    }
}
