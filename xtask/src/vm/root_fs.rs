//! Root file system for all kernels, made of this machine's own tools and libraries: programs that are built here run
//! there.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{
    kernels::sbin,
    store::{self, copy_below, quietly},
};

/// Programs that tests run.
const PROGRAMS: [&str; 18] = [
    "ip", "tc", "bridge", "ss", "nsenter", "sysctl", "ethtool", "haproxy", "nginx", "curl", "openssl", "bpftool",
    "nft", "socat", "timeout", "sleep", "cat", "tcpdump",
];

/// Folders with files that the programs read.
const FOLDERS: [&str; 10] = [
    "/etc/ssl",
    "/etc/iproute2",
    "/usr/share/iproute2",
    "/etc/nginx",
    "/usr/share/nginx",
    "/usr/lib/nginx",
    "/usr/lib/ssl",
    "/usr/lib/tc",
    "/usr/lib/x86_64-linux-gnu/tc",
    "/usr/lib/x86_64-linux-gnu/ossl-modules",
];

const FILES: [&str; 6] = [
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/services",
    "/etc/ld.so.cache",
];

const EMPTY: [&str; 11] = [
    "proc",
    "sys",
    "dev",
    "run",
    "tmp",
    "job",
    "root",
    "var/lib",
    "var/log/nginx",
    "etc",
    "mnt",
];

/// Finds the statically linked busybox.
pub(super) fn busybox() -> Result<PathBuf> {
    let places = ["/usr/bin/busybox", "/bin/busybox"].map(PathBuf::from);
    places
        .into_iter()
        .find(|path| path.is_file())
        .context("no busybox; install busybox-static")
}

/// Makes the image, and returns its path.
pub(super) fn make() -> Result<PathBuf> {
    let dir = store::dir("root")?;
    let (tree, image) = (dir.join("tree"), dir.join("root.ext4"));
    let _ = fs::remove_dir_all(&tree);
    for part in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64"].iter().chain(&EMPTY) {
        fs::create_dir_all(tree.join(part))?;
    }
    for (link, to) in [
        ("bin", "usr/bin"),
        ("sbin", "usr/sbin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
        ("var/run", "/run"),
    ] {
        symlink(to, tree.join(link))?;
    }
    fs::copy(busybox()?, tree.join("usr/bin/busybox"))?;
    let mut libraries = BTreeSet::new();
    for program in PROGRAMS {
        let path = sbin(program);
        if path.is_file() {
            add(&tree, &path.canonicalize()?, &path)?;
            libraries.extend(libraries_of(&path));
        }
    }
    for folder in FOLDERS {
        for file in files_below(Path::new(folder)) {
            copy_below(&file, &tree)?;
            if file.extension().is_some_and(|ext| ext == "so") {
                libraries.extend(libraries_of(&file));
            }
        }
    }
    for library in libraries {
        let canonical = library.canonicalize()?;
        add(&tree, &canonical, &library)?;
    }
    for file in FILES {
        if Path::new(file).is_file() {
            copy_below(Path::new(file), &tree)?;
        }
    }
    // All other commands that a script may use.
    for applet in quietly(Command::new(busybox()?).arg("--list"))?.lines() {
        let link = tree.join("usr/bin").join(applet);
        if !link.exists() && !tree.join("usr/sbin").join(applet).exists() {
            let _ = symlink("busybox", link);
        }
    }
    image_of(&tree, &image, 768)?;
    fs::remove_dir_all(&tree)?;
    Ok(image)
}

/// Copies a file into the tree, to the path by which it is known.
fn add(tree: &Path, file: &Path, asked: &Path) -> Result<()> {
    let asked = asked.strip_prefix("/").unwrap_or(asked);
    let target = tree.join(asked);
    if target.exists() {
        return Ok(());
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(file, &target).with_context(|| format!("{} cannot be copied", file.display()))?;
    Ok(())
}

/// Libraries that the dynamic loader would load for a program.
pub(super) fn libraries_of(program: &Path) -> Vec<PathBuf> {
    let said = Command::new("ldd").arg(program).output();
    let text = said
        .map(|said| String::from_utf8_lossy(&said.stdout).into_owned())
        .unwrap_or_default();
    let path = |line: &str| {
        let word = line.split_whitespace().find(|word| word.starts_with('/'))?;
        Some(PathBuf::from(word))
    };
    text.lines().filter_map(path).filter(|path| path.is_file()).collect()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if path.is_file() {
            files.push(path);
        }
    }
    files
}

/// Makes an ext4 image of a folder, of at most `mib` MiB; it is as large as its contents.
pub(super) fn image_of(tree: &Path, image: &Path, mib: u32) -> Result<()> {
    let _ = fs::remove_file(image);
    let mut command = Command::new(sbin("mke2fs"));
    command
        .args(["-q", "-t", "ext4", "-E", "root_owner=0:0", "-d"])
        .arg(tree)
        .arg(image)
        .arg(format!("{mib}M"));
    quietly(&mut command).map(drop)
}
