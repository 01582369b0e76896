//! Kernels: Debian's packages for several releases, or an image built by hand.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::store::{self, quietly};
use crate::mirror::Apt;

/// A kernel to boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Name that the kernel was asked for by: `6.1`, `newest`, or the name of an image's file.
    pub(super) name: String,
    /// Version of the package, such as 6.1.192; empty for an image.
    pub(super) version: String,
    pub(super) image: PathBuf,
    /// Folder with `modules.dep`; `None` if everything that is needed is in the image.
    pub(super) modules: Option<PathBuf>,
}

impl Kernel {
    /// Numbers that order kernels by age.
    pub(super) fn order(&self) -> Vec<u32> {
        numbers(if self.version.is_empty() {
            &self.name
        } else {
            &self.version
        })
    }

    /// Whether the kernel is too old for some programs.
    pub(super) fn is_too_old(&self) -> bool {
        let order = self.order();
        order.first().is_some_and(|major| *major < 5) || order.starts_with(&[5]) && order.get(1) < Some(&14)
    }
}

/// Kernel lines, and the suites of the main archive and of the security archive that may have them.
const SUITES: [(&str, &[&str], &[&str]); 4] = [
    ("5.10", &[], &["bullseye-security"]),
    ("6.1", &["bookworm"], &["bookworm-security"]),
    ("6.12", &["trixie"], &["bookworm-security", "trixie-security"]),
    ("", &["trixie", "trixie-backports", "sid"], &[]),
];

/// Finds a kernel, downloads and unpacks it.
pub(super) fn find(name: &str) -> Result<Kernel> {
    if name.contains('/') {
        let image = PathBuf::from(name);
        if !image.is_file() {
            bail!("there is no kernel image {name}");
        }
        // An image built by hand, with all drivers in it: named after its version, such as builds/5.15/bzImage.
        let parts = image.components().filter_map(|part| part.as_os_str().to_str());
        let mut version =
            parts.filter(|part| numbers(part).len() > 1 && part.starts_with(|c: char| c.is_ascii_digit()));
        let version = version.next_back().unwrap_or("image").to_owned();
        return Ok(Kernel {
            name: version,
            version: String::new(),
            image,
            modules: None,
        });
    }
    let suites = SUITES.iter().find(|(line, ..)| *line == name || line.is_empty());
    let (_, main, security) = suites.context("no suites")?;
    let apt = Apt::of(main, security)?;
    let flavour = newest(&apt, name)?;
    let dir = store::dir("kernels")?.join(&flavour.name);
    if !dir.join("complete").is_file() {
        unpack(&apt, &flavour, &dir)?;
    }
    let release = &flavour.name;
    // From 7.3 on the image is beside its modules.
    let image = [
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
    ];
    let image = image.iter().map(|path| dir.join(path)).find(|path| path.is_file());
    let image = image.with_context(|| format!("the packages of {release} have no vmlinuz"))?;
    let modules = [dir.join("lib/modules"), dir.join("usr/lib/modules")];
    let modules = modules
        .iter()
        .filter_map(|base| fs::read_dir(base).ok())
        .flat_map(Iterator::flatten)
        .map(|entry| entry.path())
        .find(|path| path.join("modules.dep").is_file());
    Ok(Kernel {
        name: name.to_owned(),
        version: flavour
            .version
            .split(['-', '~', '+'])
            .next()
            .unwrap_or_default()
            .to_owned(),
        image,
        modules: Some(modules.context("no modules.dep was made")?),
    })
}

fn unpack(apt: &Apt, flavour: &Flavour, dir: &Path) -> Result<()> {
    println!("fetching the kernel {} ({})", flavour.name, flavour.version);
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    for package in &flavour.packages {
        quietly(
            apt.command("apt-get")
                .args(["-qq", "download", package])
                .current_dir(dir),
        )?;
    }
    for entry in fs::read_dir(dir)?.flatten() {
        let deb = entry.path();
        if deb.extension().is_some_and(|ext| ext == "deb") {
            quietly(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(dir))?;
            fs::remove_file(deb)?;
        }
    }
    // Newer packages have their files below /usr.
    for (below, base) in [("usr/lib/modules", "usr"), ("lib/modules", "")] {
        for entry in fs::read_dir(dir.join(below)).into_iter().flatten().flatten() {
            let release = entry.file_name();
            quietly(Command::new(sbin("depmod")).arg("-b").arg(dir.join(base)).arg(release))?;
        }
    }
    fs::write(dir.join("complete"), "")?;
    Ok(())
}

/// Path of an administrator's tool, which a user's PATH may lack.
pub(super) fn sbin(name: &str) -> PathBuf {
    let places = ["/usr/sbin", "/sbin", "/usr/bin"].map(|dir| Path::new(dir).join(name));
    places
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}

/// A build of a kernel, and the packages that it is in.
struct Flavour {
    name: String,
    version: String,
    packages: Vec<String>,
}

/// The newest cloud kernel of a line.
fn newest(apt: &Apt, line: &str) -> Result<Flavour> {
    let names = quietly(apt.command("apt-cache").args(["pkgnames", "linux-image-"]))?;
    let mut best: Option<Flavour> = None;
    for image in names.lines() {
        let Some(name) = image
            .strip_prefix("linux-image-")
            .and_then(|name| name.strip_suffix("-cloud-amd64"))
        else {
            continue;
        };
        let is_of_line = line == "newest" || numbers(name).starts_with(&numbers(line)) && numbers(line).len() > 1;
        // A meta package is "6.1"; a release candidate has no patch level either.
        if !is_of_line || numbers(name).len() < 3 || name.contains("deb11") {
            continue;
        }
        let shown = quietly(apt.command("apt-cache").args(["show", "--no-all-versions", image]))?;
        let field = |key: &str| {
            shown
                .lines()
                .find_map(|text| text.strip_prefix(key))
                .unwrap_or_default()
        };
        let version = field("Version: ").to_owned();
        if version.contains("rc") || best.as_ref().is_some_and(|best| !is_later(&version, &best.version)) {
            continue;
        }
        // From 6.19 on the image and the modules are in separate packages.
        let mut packages = vec![image.to_owned()];
        for word in field("Depends: ").split([',', '|', ' ', '(']) {
            if word.starts_with("linux-binary-") || word.starts_with("linux-modules-") {
                packages.push(word.to_owned());
            }
        }
        let name = format!("{name}-cloud-amd64");
        best = Some(Flavour {
            name,
            version,
            packages,
        });
    }
    best.with_context(|| format!("the mirror has no cloud kernel {line} for amd64"))
}

fn is_later(one: &str, other: &str) -> bool {
    let compared = Command::new("dpkg")
        .args(["--compare-versions", one, "gt", other])
        .status();
    compared.is_ok_and(|status| status.success())
}

/// The numbers that a version begins with.
fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_far_as_they_are_numbers() {
        assert_eq!(numbers("6.12.117+deb12"), [6, 12, 117]);
        assert_eq!(numbers("6.1.0-56"), [6, 1, 0, 56]);
        assert_eq!(numbers("6.1"), [6, 1]);
        assert_eq!(numbers("newest"), [0; 0]);
    }

    #[test]
    fn kernels_before_5_14_are_too_old() {
        let kernel = |version: &str| Kernel {
            name: "x".into(),
            version: version.into(),
            image: PathBuf::new(),
            modules: None,
        };
        for (version, is_too_old) in [
            ("5.10.262", true),
            ("5.14.0", false),
            ("5.15.24", false),
            ("6.1.192", false),
            ("4.19", true),
        ] {
            assert_eq!(kernel(version).is_too_old(), is_too_old, "{version}");
        }
    }
}
