//! Virtual machine: qemu with a kernel, two disks and a serial console.

use std::{
    ffi::OsString,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    accel::Accel,
    build::Built,
    emulator,
    job::{self, Job},
    kernels::{Kernel, sbin},
    modules,
    outcome::Outcome,
    root_fs,
    store::quietly,
};
use crate::exec::is_root;

/// A running virtual machine.
pub(super) struct Machine {
    child: Child,
    console: PathBuf,
}

impl Machine {
    /// Boots a kernel with a job.
    pub(super) fn boot(kernel: &Kernel, accel: Accel, root_fs: &Path, built: &Built, job: &Job) -> Result<Self> {
        Self::boot_as(kernel, &kernel.name, accel, root_fs, &built.files(), job, &[], None)
    }

    /// Boots a kernel with a job, and with other files than the tests' programs.
    pub(super) fn boot_with(
        kernel: &Kernel,
        name: &str,
        accel: Accel,
        root_fs: &Path,
        files: &[(PathBuf, String)],
        job: &Job,
    ) -> Result<Self> {
        Self::boot_as(kernel, name, accel, root_fs, files, job, &[], None)
    }

    #[expect(clippy::too_many_arguments, reason = "one place where a machine is put together")]
    fn boot_as(
        kernel: &Kernel,
        name: &str,
        accel: Accel,
        root_fs: &Path,
        files: &[(PathBuf, String)],
        job: &Job,
        cards: &[OsString],
        network: Option<&str>,
    ) -> Result<Self> {
        let dir = super::logs()?.join(format!("{name}.machine"));
        let _ = fs::remove_dir_all(&dir);
        let tree = dir.join("job");
        fs::create_dir_all(&tree)?;
        for (file, name) in files {
            let to = tree.join(name);
            fs::create_dir_all(to.parent().unwrap_or(&tree))?;
            fs::hard_link(file, &to).or_else(|_| fs::copy(file, &to).map(drop))?;
        }
        fs::write(tree.join("run"), &job.script)?;
        let disk = dir.join("job.ext4");
        root_fs::image_of(&tree, &disk, 512)?;
        let initramfs = modules::initramfs(kernel)?;
        let console = dir.join("console");
        let mut command = Self::qemu(kernel, accel, &initramfs, network)?;
        for disk in [root_fs, &disk] {
            let mut drive = OsString::from("if=virtio,format=raw,snapshot=on,file=");
            drive.push(disk);
            command.arg("-drive").arg(drive);
        }
        command.args(cards);
        let out = File::create(&console)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .context("QEMU cannot be started")?;
        println!("kernel {name} boots");
        Ok(Self { child, console })
    }

    fn qemu(kernel: &Kernel, accel: Accel, initramfs: &Path, network: Option<&str>) -> Result<Command> {
        let (accel, cpu) = match accel {
            Accel::Kvm => ("kvm", "host"),
            Accel::Tcg => ("tcg,thread=multi", "max"),
        };
        let mut command = emulator::command(network)?;
        command.args([
            "-accel",
            accel,
            "-cpu",
            cpu,
            "-smp",
            "2",
            "-m",
            "2048",
            "-nographic",
            "-no-reboot",
            "-nodefaults",
        ]);
        command
            .args(["-serial", "stdio", "-kernel"])
            .arg(&kernel.image)
            .arg("-initrd")
            .arg(initramfs);
        command.args([
            "-append",
            "console=ttyS0 quiet panic=-1 net.ifnames=0 random.trust_cpu=on",
        ]);
        Ok(command)
    }

    /// Waits until the machine is off, and returns its console's output.
    pub(super) fn wait(mut self, limit: Duration) -> Result<String> {
        let end = Instant::now() + limit;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= end {
                println!("the machine has not ended within {} s", limit.as_secs());
                break;
            }
            thread::sleep(Duration::from_millis(200));
        }
        self.stop();
        self.said()
    }

    fn said(&self) -> Result<String> {
        let bytes = fs::read(&self.console).with_context(|| format!("{} cannot be read", self.console.display()))?;
        Ok(String::from_utf8_lossy(&bytes).replace('\r', ""))
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a kernel gets as far as its initramfs, without any disk.
pub(super) fn starts(kernel: &Kernel, accel: Accel, limit: Duration) -> Result<bool> {
    let console = super::logs()?.join("accel.console");
    let initramfs = modules::initramfs(kernel)?;
    let out = File::create(&console)?;
    let mut command = Machine::qemu(kernel, accel, &initramfs, None)?;
    let child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    let mut machine = Machine { child, console };
    let end = Instant::now() + limit;
    while Instant::now() < end {
        thread::sleep(Duration::from_millis(200));
        if machine.said()?.contains("@@ no disks") {
            return Ok(true);
        }
        if machine.child.try_wait()?.is_some() {
            break;
        }
    }
    Ok(machine.said()?.contains("@@ no disks"))
}

/// Runs two machines with two cables between them: the balancer's, and that of a client and a host.
pub(super) fn two(kernel: &Kernel, accel: Accel, root_fs: &Path, built: &Built) -> Result<Outcome> {
    if !is_root() {
        bail!("two machines need root: their cables are tap devices in a network namespace");
    }
    let wires = Wires::lay()?;
    let begun = Instant::now();
    let (balancer, peer) = (job::balancer(), job::peer());
    let name = |role: &str| format!("{}-{role}", kernel.name);
    let boot = |role: &str, job: &Job, ends: [&str; 2]| {
        let cards = cards(ends);
        Machine::boot_as(
            kernel,
            &name(role),
            accel,
            root_fs,
            &built.files(),
            job,
            &cards,
            Some(&wires.name),
        )
    };
    let mut first = boot("balancer", &balancer, ["a0", "a1"])?;
    let second = boot("peer", &peer, ["b0", "b1"])?;
    let log = second.wait(peer.limit)?;
    first.stop();
    let outcome = Outcome::read_named(kernel, "two machines", &peer, &log, begun.elapsed());
    println!("{}", outcome.text());
    if !outcome.failures().is_empty() {
        print!(
            "{}\n{}",
            super::outcome::tail(&log, 60),
            super::outcome::tail(&first.said()?, 40)
        );
    }
    Ok(outcome)
}

/// Arguments for network cards with four queues each: two for the stack's two processors, and two for XDP's.
fn cards(ends: [&str; 2]) -> Vec<OsString> {
    let mut words = Vec::new();
    for (n, end) in ends.iter().enumerate() {
        let mac = format!("52:54:00:5b:{:02x}:{n:02x}", end.as_bytes()[0]);
        words.push("-netdev".into());
        words.push(format!("tap,id=n{n},ifname={end},script=no,downscript=no,queues=4").into());
        words.push("-device".into());
        let off = "guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,guest_csum=off";
        words.push(format!("virtio-net-pci,netdev=n{n},mq=on,vectors=10,mac={mac},{off}").into());
    }
    words
}

/// Tap devices and bridges in a separate namespace.
struct Wires {
    name: String,
}

impl Wires {
    fn lay() -> Result<Self> {
        let wires = Self {
            name: format!("sbm-wires-{}", std::process::id()),
        };
        let ip = sbin("ip");
        quietly(Command::new(&ip).args(["netns", "add", &wires.name]))?;
        let run = |words: &str| {
            let mut command = Command::new(&ip);
            command.args(["-n", &wires.name]).args(words.split(' '));
            quietly(&mut command).map(drop)
        };
        for (bridge, ends) in [("w0", ["a0", "b0"]), ("w1", ["a1", "b1"])] {
            run(&format!(
                "link add {bridge} type bridge forward_delay 0 mcast_snooping 0"
            ))?;
            run(&format!("link set {bridge} up"))?;
            for end in ends {
                run(&format!("tuntap add dev {end} mode tap multi_queue"))?;
                run(&format!("link set {end} master {bridge} up"))?;
            }
        }
        Ok(wires)
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        let _ = Command::new(sbin("ip")).args(["netns", "del", &self.name]).output();
    }
}
