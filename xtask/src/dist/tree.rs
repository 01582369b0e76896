//! Files of a package: where each comes from, where it goes. One list for all formats, which differ in few places.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};

use super::{Format, product::Product, release::Release};
use crate::vm::store::quietly;

/// A file of a package.
pub(super) struct PackagedFile {
    /// Path from the root, without the slash.
    pub(super) path: String,
    is_program: bool,
    content: Content,
}

enum Content {
    Copy(PathBuf),
    /// Compressed by gzip, as Debian's policy and man-db require.
    Gzip(Vec<u8>),
    Text(String),
    /// A symbolic link.
    Link(&'static str),
}

/// Files of the package itself.
pub(super) fn main_files(
    root: &Path,
    product: &Product,
    release: &Release,
    format: Format,
) -> Result<Vec<PackagedFile>> {
    let packaging = root.join("packaging");
    let mut files = vec![PackagedFile {
        path: "usr/bin/signalbox".to_owned(),
        is_program: true,
        content: Content::Copy(product.program()),
    }];
    let zsh = match format {
        Format::Deb => "usr/share/zsh/vendor-completions/_signalbox",
        _ => "usr/share/zsh/site-functions/_signalbox",
    };
    for (from, to) in [
        ("signalbox.bash", "usr/share/bash-completion/completions/signalbox"),
        ("_signalbox", zsh),
        ("signalbox.fish", "usr/share/fish/vendor_completions.d/signalbox.fish"),
    ] {
        files.push(copy(product.directory.join(from), to));
    }
    for (from, to) in [
        ("systemd/signalbox.service", "usr/lib/systemd/system/signalbox.service"),
        (
            "systemd/signalbox-ha.service",
            "usr/lib/systemd/system/signalbox-ha.service",
        ),
        ("systemd/signalbox.sysusers.conf", "usr/lib/sysusers.d/signalbox.conf"),
        ("systemd/signalbox.tmpfiles.conf", "usr/lib/tmpfiles.d/signalbox.conf"),
        ("prometheus/alerts.yaml", "usr/share/signalbox/prometheus/alerts.yaml"),
        (
            "prometheus/recording.yaml",
            "usr/share/signalbox/prometheus/recording.yaml",
        ),
    ] {
        files.push(copy(packaging.join(from), to));
    }
    files.push(PackagedFile {
        path: "usr/lib/signalbox/replace".to_owned(),
        is_program: true,
        content: Content::Copy(packaging.join("systemd/replace")),
    });
    for dashboard in in_directory(&packaging.join("grafana"), ".json")? {
        let to = format!("usr/share/signalbox/grafana/{}", name_of(&dashboard));
        files.push(copy(dashboard, &to));
    }
    // Kustomization of all dashboards: the overlays name it by a relative path.
    files.push(copy(
        packaging.join("grafana/kustomization.yaml"),
        "usr/share/signalbox/grafana/kustomization.yaml",
    ));
    for manifest in files_below(&packaging.join("k8s"))? {
        let to = format!("usr/share/signalbox/{}", manifest.strip_prefix(&packaging)?.display());
        files.push(copy(manifest, &to));
    }
    for page in in_directory(&product.pages(), ".8")? {
        files.push(PackagedFile {
            path: format!("usr/share/man/man8/{}.gz", name_of(&page)),
            is_program: false,
            content: Content::Gzip(fs::read(&page)?),
        });
    }
    let documents = "usr/share/doc/signalbox";
    files.push(copy(
        root.join("docs/example.yaml"),
        &format!("{documents}/examples/signalbox.yaml"),
    ));
    files.push(PackagedFile {
        path: format!("{documents}/THIRD-PARTY.gz"),
        is_program: false,
        content: Content::Gzip(fs::read(product.notices())?),
    });
    match format {
        Format::Deb => files.extend(debian_documents(&packaging, root, release, documents)?),
        Format::Rpm => {
            files.extend(licences(root, "usr/share/licenses/signalbox"));
            let preset = "80-signalbox.preset";
            let to = format!("usr/lib/systemd/system-preset/{preset}");
            files.push(copy(packaging.join("rpm").join(preset), &to));
        }
        Format::Tar | Format::Man | Format::Image | Format::Sbom => files.extend(licences(root, documents)),
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The debug symbols, where debuggers look for those of a program with this build id.
pub(super) fn debug_files(product: &Product) -> Result<Vec<PackagedFile>> {
    let Some((first, rest)) = product.build_id.split_at_checked(2) else {
        bail!("the build id {} is too short", product.build_id);
    };
    let to = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
    Ok(vec![copy(product.symbols(), &to)])
}

/// The documents of the package itself are also those of its debug symbols.
pub(super) fn debian_link() -> PackagedFile {
    PackagedFile {
        path: "usr/share/doc/signalbox-dbgsym".to_owned(),
        is_program: false,
        content: Content::Link("signalbox"),
    }
}

/// Documents that Debian's policy requires in each package.
fn debian_documents(packaging: &Path, root: &Path, release: &Release, directory: &str) -> Result<Vec<PackagedFile>> {
    let mit = fs::read_to_string(root.join("LICENSE-MIT"))?;
    let indented: Vec<String> = mit
        .lines()
        .map(|line| {
            if line.is_empty() {
                " .".to_owned()
            } else {
                format!(" {line}")
            }
        })
        .collect();
    let copyright = fs::read_to_string(packaging.join("deb/copyright"))?
        .replace("@HOMEPAGE@", &release.homepage)
        .replace("@MIT@", &indented.join("\n"));
    let changelog = format!(
        "signalbox ({}) unstable; urgency=medium\n\n  * Built from revision {}.\n\n -- signalbox maintainers \
         <maintainers@example.invalid>  {}\n",
        release.version, release.revision, release.mail_date
    );
    Ok(vec![
        PackagedFile {
            path: format!("{directory}/copyright"),
            is_program: false,
            content: Content::Text(copyright),
        },
        PackagedFile {
            path: format!("{directory}/changelog.gz"),
            is_program: false,
            content: Content::Gzip(changelog.into_bytes()),
        },
    ])
}

fn licences(root: &Path, directory: &str) -> Vec<PackagedFile> {
    let names = ["LICENSE-APACHE", "LICENSE-MIT"];
    names
        .map(|name| copy(root.join(name), &format!("{directory}/{name}")))
        .into()
}

/// Writes the files below a directory that is removed first. Modes and times do not depend on the user or the date.
pub(super) fn stage(files: &[PackagedFile], to: &Path, release: &Release) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    for file in files {
        let path = to.join(&file.path);
        fs::create_dir_all(path.parent().unwrap_or(to))?;
        match &file.content {
            Content::Copy(from) => {
                fs::copy(from, &path).with_context(|| format!("copying {}", from.display()))?;
            }
            Content::Gzip(bytes) => fs::write(&path, gzip(bytes, "-9n")?)?,
            Content::Text(text) => fs::write(&path, text)?,
            Content::Link(target) => {
                std::os::unix::fs::symlink(target, &path)?;
                continue;
            }
        }
        let mode = if file.is_program { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    settle(to, release)
}

impl PackagedFile {
    pub(super) const fn is_link(&self) -> bool {
        matches!(self.content, Content::Link(_))
    }
}

/// Sets modes of directories, and the time of everything below one.
pub(super) fn settle(path: &Path, release: &Release) -> Result<()> {
    if path.is_symlink() {
        let date = format!("@{}", release.epoch);
        return quietly(
            Command::new("touch")
                .args(["--no-dereference", "--date", &date])
                .arg(path),
        )
        .map(drop);
    }
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            settle(&entry?.path(), release)?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(release.epoch);
    fs::File::open(path)?.set_modified(time)?;
    Ok(())
}

fn copy(from: PathBuf, to: &str) -> PackagedFile {
    PackagedFile {
        path: to.to_owned(),
        is_program: false,
        content: Content::Copy(from),
    }
}

/// Compressed bytes, without name and time; `level` as gzip has it, with `n`.
pub(super) fn gzip(bytes: &[u8], level: &str) -> Result<Vec<u8>> {
    let mut child = Command::new("gzip")
        .arg(level)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("gzip cannot be started")?;
    let mut input = child.stdin.take().context("gzip has no input")?;
    // gzip writes before it has read everything: both ends are served at once.
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(bytes));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        bail!("gzip failed: {}", output.status);
    }
    Ok(output.stdout)
}

/// Files of a directory whose names end so, in order.
fn in_directory(directory: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|file| name_of(file).ends_with(end));
    files.sort();
    Ok(files)
}

/// All files below a directory.
fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in in_directory(directory, "")? {
        if entry.is_dir() {
            files.extend(files_below(&entry)?);
        } else {
            files.push(entry);
        }
    }
    Ok(files)
}

fn name_of(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
