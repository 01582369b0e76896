//! Kernel memory of the whole machine, and the unit of CPU time.
//!
//! CPU time and memory of the balancer's own processes are not enough: work that the kernel does for them in softirqs
//! and kernel threads is charged to no process, and it is most of the cost of an eBPF datapath.

use std::time::Duration;

use signalbox_lab::field;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_memory_is_of_three_kinds() {
        let meminfo = "MemFree: 9 kB\nSlab: 1 kB\nVmallocTotal: 9 kB\nVmallocUsed: 2 kB\nPercpu: 4 kB\n";
        assert_eq!(kernel_part(meminfo), 7 * 1024);
    }
}
