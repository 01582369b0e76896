//! Initramfs of a kernel: busybox, the modules that its machine needs, and the script that mounts its root file system.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{
    kernels::Kernel,
    store::{self, quietly},
};

/// Modules that are loaded at the start. One that a kernel has built in, or lacks, is ignored.
const WANTED: [&str; 43] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_rng",
    "ext4",
    "crc32c_generic",
    "crc32c-intel",
    "af_packet",
    "unix",
    "ipv6",
    "veth",
    "bridge",
    "8021q",
    "bonding",
    "dummy",
    "tun",
    "sch_ingress",
    "cls_bpf",
    "act_bpf",
    "sch_netem",
    "sch_fq",
    "sch_fq_codel",
    "ipip",
    "ip6_tunnel",
    "sit",
    "tls",
    "tcp_bbr",
    "inet_diag",
    "tcp_diag",
    "nf_tables",
    "nf_conntrack",
    "nft_ct",
    "nft_nat",
    "nft_masq",
    "nft_chain_nat",
    "nft_reject_inet",
    "gcm",
    "ctr",
    "ghash_generic",
    "aes_generic",
    "crypto_null",
    "seqiv",
    "cryptd",
];

const INIT: &str = "#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
while read module; do $b insmod /modules/$module 2>/dev/null; done < /modules/order
n=0; while [ ! -b /dev/vdb ] && [ $n -lt 100 ]; do $b sleep 0.1; n=$((n+1)); done
$b mount -t ext4 /dev/vda /root && $b mount -t ext4 -o ro /dev/vdb /root/job || { echo '@@ no disks'; $b poweroff -f; }
for d in proc sys dev; do $b mount --move /$d /root/$d; done
# A root with systemd starts the job itself.
[ -e /root/usr/lib/systemd/systemd ] && exec $b switch_root /root /usr/lib/systemd/systemd
exec $b switch_root /root /bin/busybox sh /job/run
";

/// Builds a kernel's initramfs, and returns its path.
pub(super) fn initramfs(kernel: &Kernel) -> Result<PathBuf> {
    let key = kernel.image.display().to_string().replace('/', "_");
    let dir = store::dir("initramfs")?;
    let (file, tree) = (dir.join(format!("{key}.gz")), dir.join(format!("{key}.d")));
    let _ = fs::remove_dir_all(&tree);
    for part in ["bin", "proc", "sys", "dev", "root", "modules"] {
        fs::create_dir_all(tree.join(part))?;
    }
    fs::copy(super::root_fs::busybox()?, tree.join("bin/busybox"))?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
    let mut order = String::new();
    if let Some(modules) = &kernel.modules {
        for path in closure(modules)? {
            let plain = unpacked(&modules.join(&path), &tree.join("modules"))?;
            order += &format!("{plain}\n");
        }
    }
    fs::write(tree.join("modules/order"), order)?;
    let script = "find . | cpio --quiet -o -H newc | gzip -1";
    let packed = Command::new("sh")
        .args(["-c", script])
        .current_dir(&tree)
        .stderr(Stdio::inherit())
        .output()?;
    if !packed.status.success() {
        bail!("`{script}` failed: {}", packed.status);
    }
    // Another machine of this kernel may be reading it.
    let unfinished = file.with_extension("unfinished");
    fs::write(&unfinished, packed.stdout)?;
    fs::rename(unfinished, &file)?;
    fs::remove_dir_all(&tree)?;
    Ok(file)
}

/// Wanted modules and all their dependencies, each after its dependencies.
fn closure(modules: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string(modules.join("modules.dep")).context("modules.dep cannot be read")?;
    let needs: BTreeMap<&str, Vec<&str>> = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(module, needs)| (module, needs.split_whitespace().collect()))
        .collect();
    let by_name: BTreeMap<String, &str> = needs.keys().map(|path| (name(path), *path)).collect();
    let (mut order, mut seen) = (Vec::new(), BTreeSet::new());
    for wanted in WANTED {
        let Some(path) = by_name.get(&wanted.replace('-', "_")) else {
            continue;
        };
        // depmod lists what a module needs with the nearest first.
        for path in needs[path].iter().rev().chain([path]) {
            if seen.insert(*path) {
                order.push(PathBuf::from(path));
            }
        }
    }
    Ok(order)
}

/// Name of the module in a file: `8021q` of `net/8021q/8021q.ko.xz`.
fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// Puts a module into a folder, decompressed, and returns its file's name there.
fn unpacked(module: &Path, to: &Path) -> Result<String> {
    let file = module
        .file_name()
        .context("a module without a name")?
        .to_string_lossy()
        .into_owned();
    let plain = file.split(".ko").next().unwrap_or(&file).to_owned() + ".ko";
    let target = to.join(&plain);
    let tool = match module.extension().and_then(|ext| ext.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => {
            fs::copy(module, &target).with_context(|| format!("{} cannot be copied", module.display()))?;
            return Ok(plain);
        }
    };
    let script = format!("{tool} -dc '{}' > '{}'", module.display(), target.display());
    quietly(Command::new("sh").args(["-c", &script]))?;
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_behind_all_that_it_needs() {
        let dir = std::env::temp_dir().join(format!("xtask-modules-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let dep = "kernel/net/8021q/8021q.ko.xz: kernel/net/802/mrp.ko.xz kernel/net/802/garp.ko.xz\nkernel/net/802/mrp.ko.xz:\n\
                   kernel/net/802/garp.ko.xz: kernel/net/802/stp.ko.xz\nkernel/net/802/stp.ko.xz:\nkernel/drivers/other.ko:\n";
        fs::write(dir.join("modules.dep"), dep).unwrap();
        let order: Vec<String> = closure(&dir)
            .unwrap()
            .iter()
            .map(|path| name(&path.to_string_lossy()))
            .collect();
        assert_eq!(order, ["garp", "mrp", "8021q"]);
        fs::remove_dir_all(dir).unwrap();
    }
}
