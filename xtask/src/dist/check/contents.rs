//! Lists of the files of packages, compared with checked-in ones; and packages compared byte by byte.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::vm::store::quietly;

/// Where the list of a package's files is.
fn list_of(root: &Path, package: &Path) -> Result<PathBuf> {
    let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let kind = if name.ends_with(".tar.xz") {
        "tar"
    } else {
        name.rsplit('.').next().unwrap_or_default()
    };
    let part = if ["dbgsym", "debuginfo", "-debug."]
        .iter()
        .any(|word| name.contains(word))
    {
        "-debug"
    } else {
        ""
    };
    Ok(root.join(format!("packaging/{kind}/files{part}.txt")))
}

/// Compares a package's files, with modes and owners, with the checked-in list; or writes the list.
pub(super) fn check(root: &Path, package: &Path, build_id: &str, update: bool) -> Result<Vec<String>> {
    compare(root, &list_of(root, package)?, &files(package, build_id)?, update)
}

/// Compares lines with those of a checked-in list; or writes the list.
pub(super) fn compare(root: &Path, file: &Path, found: &str, update: bool) -> Result<Vec<String>> {
    if update {
        fs::create_dir_all(file.parent().unwrap_or(root))?;
        fs::write(file, found)?;
    }
    let listed = fs::read_to_string(file).with_context(|| format!("reading {}; --update writes it", file.display()))?;
    let shown = file.strip_prefix(root).unwrap_or(file);
    Ok(differences(&listed, found)
        .into_iter()
        .map(|line| format!("{}: {line}", shown.display()))
        .collect())
}

/// Lines that only one of both has.
fn differences(listed: &str, found: &str) -> Vec<String> {
    let only = |a: &str, b: &str, what: &str| -> Vec<String> {
        let lines = a.lines().filter(|line| !b.lines().any(|other| other == *line));
        lines.map(|line| format!("{what} `{line}`")).collect()
    };
    let mut all = only(listed, found, "the package lacks");
    all.extend(only(found, listed, "the list lacks"));
    all
}

fn files(package: &Path, build_id: &str) -> Result<String> {
    let name = package.to_string_lossy();
    let text = if name.ends_with(".rpm") {
        let format = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\\n]";
        let said = quietly(
            Command::new("rpm")
                .args(["-qp", "--nosignature", "--queryformat", format])
                .arg(package),
        )?;
        in_order(said.lines().map(str::to_owned).collect())
    } else {
        let said = if name.ends_with(".deb") {
            quietly(Command::new("dpkg-deb").arg("-c").arg(package))?
        } else {
            quietly(Command::new("tar").args(["-tvf"]).arg(package))?
        };
        lines_of_tar(&said)
    };
    let (first, rest) = build_id.split_at(2);
    Ok(text
        .replace(&format!("/{first}/{rest}."), "/BU/ILD-ID.")
        .replace(&format!("/{first}/\n"), "/BU/\n"))
}

/// Lines of tar, in order and without sizes and times.
pub(super) fn lines_of_tar(said: &str) -> String {
    in_order(said.lines().filter_map(of_tar).collect())
}

fn in_order(mut lines: Vec<String>) -> String {
    lines.sort_by(|a, b| path_of(a).cmp(path_of(b)));
    lines.join("\n") + "\n"
}

fn path_of(line: &str) -> &str {
    line.rsplit(' ').next().unwrap_or(line)
}

/// Mode, owner and path of a line of tar, without size and time. The directory named after the version is left out.
fn of_tar(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (mode, owner, path) = (words.first()?, words.get(1)?, words.get(5)?);
    let path = path
        .strip_prefix('.')
        .or_else(|| Some(path.split_once('/')?.1))
        .unwrap_or(path);
    Some(format!("{mode} {owner} /{}", path.trim_start_matches('/')))
}

/// Fails unless both files have the same bytes.
pub(super) fn must_be_same(a: &Path, b: &Path) -> Result<()> {
    if fs::read(a)? != fs::read(b)? {
        bail!(
            "{} and {} differ, though made of the same program and commit; diffoscope shows where",
            a.display(),
            b.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_too_many_and_one_too_few_are_named() {
        assert!(differences("a\nb\n", "a\nb\n").is_empty());
        assert_eq!(
            differences("a\nb\n", "a\nc\n"),
            ["the package lacks `b`", "the list lacks `c`"]
        );
    }

    #[test]
    fn lines_of_tar_lose_size_time_and_version() {
        assert_eq!(
            of_tar("-rw-r--r-- 0/0 12 2030-01-01 10:00 signalbox-1-linux-x86_64/usr/a").as_deref(),
            Some("-rw-r--r-- 0/0 /usr/a")
        );
        assert_eq!(
            of_tar("drwxr-xr-x root/root 0 2030-01-01 10:00 ./usr/").as_deref(),
            Some("drwxr-xr-x root/root /usr/")
        );
    }
}
