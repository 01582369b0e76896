//! Job of a machine: a script of steps, each with a time limit, that reports on the console how each ended.

use std::{fmt::Write as _, time::Duration};

use super::{Depth, kernels::Kernel};

/// A script, and the time limit for all of it.
pub(super) struct Job {
    pub(super) script: String,
    pub(super) limit: Duration,
    /// Names of the steps, in order.
    pub(super) steps: Vec<&'static str>,
}

/// Beginning of every script. Timeouts allow for an emulated processor, some thirty times slower than the one it runs
/// on.
const HEAD: &str = "export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root RUST_BACKTRACE=1
export REQUIRE_PRIVILEGED_TESTS=1 SIGNALBOX_BIN=/job/signalbox SIGNALBOX_TEST_PATIENCE=6 SIGNALBOX_TEST_DOWNLOAD_MIB=1024
mount -t tmpfs run /run; mount -t tmpfs tmp /tmp; mkdir -p /dev/pts /dev/shm; mount -t tmpfs shm /dev/shm
mkdir -p /sys/fs/cgroup; mount -t cgroup2 cgroup /sys/fs/cgroup 2>/dev/null; mount -t bpf bpf /sys/fs/bpf 2>/dev/null
echo 1 > /proc/sys/kernel/printk; ulimit -n 20000; ip link set lo up
step() { name=$1; limit=$2; shift 2; echo \"@@ begin $name\"; timeout $limit \"$@\" 2>&1; echo \"@@ end $name $?\"; }
echo \"@@ kernel $(cat /proc/version)\"
";

/// A step: name, time limit in seconds, command.
type JobStep = (&'static str, u32, String);

/// Job for a kernel.
pub(super) fn of(kernel: &Kernel, depth: Depth) -> Job {
    let doctor = ("doctor", 300, "/job/signalbox doctor --verbose -o json".to_owned());
    if kernel.is_too_old() {
        return job(&[doctor, ("old", 300, test("e2e", &["machines::old::"]))]);
    }
    let peek = ("kernel-peek", 600, test("e2e", &["machines::peek::"]));
    let scenario = ("scenario", 900, test("e2e", &["machines::everywhere::"]));
    // As many tests as there is time for, some of each kind.
    let some = &[
        "cut_packets::forward",
        "cut_packets::options",
        "cut_packets::joining",
        "cut_packets::icmp",
        "l4_packets::nat",
        "relay::bytes_that",
        "steer::",
        "syn::",
    ][..];
    let names = &["machines::links::", "machines::offload::", "legs_on_vlans"];
    let mut steps: Vec<JobStep> = vec![doctor, scenario, peek, ("links", 900, test("e2e", names))];
    let all = &[
        "cut_packets::",
        "l4_packets::",
        "object::",
        "steer::",
        "syn::",
        "relay::",
        "cut::",
    ][..];
    steps.push(match depth {
        Depth::Gate => ("packets", 600, test("kernel", some)),
        Depth::Whole | Depth::TwoMachines => ("packets", 1500, test("kernel", all)),
    });
    job(&steps)
}

/// Job of the balancer's machine, while the other machine's test runs.
pub(super) fn balancer() -> Job {
    let config = "version: 1
admin: { listen: \"10.1.0.1:8089\", read: open, socket: /run/signalbox.sock }
store: { path: /tmp/state.redb }
shield: { deny: [10.1.0.3] }
layer4: { hook: native }
services:
  - { name: db, protocol: tcp, listen: [\"10.1.0.1:3306\"], cluster: east }
  - { name: dns, protocol: udp, listen: [\"10.1.0.1:53\"], cluster: east }
clusters:
  - name: east
    health: { tcp: { port: 3306 }, interval: 1s, timeout: 500ms, rise: 1 }
    hosts: [{ name: host, address: 10.2.0.2, tcp: 3306 }]
";
    let mut script = HEAD.to_owned();
    for (card, address) in [("eth0", "10.1.0.1/24"), ("eth1", "10.2.0.1/24")] {
        let _ = writeln!(
            script,
            "ip addr add {address} dev {card}; ip link set {card} up; ethtool -l {card}"
        );
    }
    let _ = writeln!(script, "cat > /tmp/config.yaml <<'END'\n{config}END");
    let _ = writeln!(script, "step balancer 600 /job/signalbox run --config /tmp/config.yaml");
    finished(script, &["balancer"], 620)
}

/// Job of the machine with the client and the host.
pub(super) fn peer() -> Job {
    job(&[("two-machines", 300, test("e2e", &["machines::two::"]))])
}

fn test(program: &str, names: &[&str]) -> String {
    format!("/job/{program} --test-threads=1 --show-output {}", names.join(" "))
}

fn job(steps: &[JobStep]) -> Job {
    let mut script = HEAD.to_owned();
    let (mut names, mut seconds) = (Vec::new(), 60);
    for (name, limit, command) in steps {
        let _ = writeln!(script, "step {name} {limit} {command}");
        names.push(*name);
        seconds += limit;
    }
    finished(script, &names, seconds)
}

fn finished(mut script: String, steps: &[&'static str], seconds: u32) -> Job {
    script += "echo '@@ done'\npoweroff -f\n";
    Job {
        script,
        limit: Duration::from_secs(seconds.into()),
        steps: steps.to_vec(),
    }
}
