//! The certificates of aliases as files that only signalbox may read.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use signalbox_core::spi::{AppKey, Application};

/// The longest part of a file's name that is an alias's own: 255 less endings and a number.
const LONGEST: usize = 200;

/// `DIR/NAMESPACE+APP/ALIAS.crt`, `.key` and `.pass`.
#[derive(Debug)]
pub(super) struct Certificates(PathBuf);

impl Certificates {
    /// Makes the directory if it is not there, and closes it to others.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        private_directory(directory)?;
        Ok(Self(directory.to_owned()))
    }

    /// Makes the files those of these applications, and no others. Directories of other names are nobody's business.
    pub(super) fn settle_all<'a>(&self, applications: impl Iterator<Item = &'a Application>) -> io::Result<()> {
        let mut known: HashSet<OsString> = HashSet::new();
        for application in applications {
            self.settle(&application.key, Some(application))?;
            known.insert(directory_name(&application.key).into());
        }
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let ours = entry.file_name().to_string_lossy().contains('+') && entry.file_type()?.is_dir();
            if ours && !known.contains(&entry.file_name()) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Makes the files of one application what it says; `None`: it is gone.
    pub(super) fn settle(&self, key: &AppKey, application: Option<&Application>) -> io::Result<()> {
        let directory = self.0.join(directory_name(key));
        let wanted = application.map(files).unwrap_or_default();
        if wanted.is_empty() {
            return match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        private_directory(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(|name| wanted.contains_key(name)) {
                fs::remove_file(entry.path())?;
            }
        }
        for (name, content) in &wanted {
            write(&directory, name, content)?;
        }
        File::open(&directory)?.sync_all()
    }
}

fn private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Neither part can have a `+`, so that no two applications share a directory.
fn directory_name(key: &AppKey) -> String {
    format!("{}+{}", key.namespace, key.app)
}

fn files(application: &Application) -> BTreeMap<String, &str> {
    let certificates = application.certificates.iter();
    let files = certificates.flat_map(|(alias, certificate)| {
        let name = file_name(alias);
        [
            Some((format!("{name}.crt"), certificate.chain.as_str())),
            certificate
                .private_key
                .as_ref()
                .map(|key| (format!("{name}.key"), key.reveal())),
            certificate
                .pass_phrase
                .as_ref()
                .map(|phrase| (format!("{name}.pass"), phrase.reveal())),
        ]
    });
    files.flatten().collect()
}

/// An alias is whatever somebody typed: what is no letter, digit, `-` or `_` between dots becomes `%XX`.
fn file_name(alias: &str) -> String {
    let mut name = String::new();
    for (at, byte) in alias.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && at > 0);
        if plain {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.len() > LONGEST {
        // FNV-1a, of which the name must not change from one version to the next.
        let hash = alias.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        name.truncate(LONGEST);
        name.push_str(&format!("~{hash:016x}"));
    }
    name
}

/// In one step, so that no reader finds half of it; not at all if it is there.
fn write(directory: &Path, name: &str, content: &str) -> io::Result<()> {
    let path = directory.join(name);
    let private = |path: &Path| fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o777 == 0o600);
    if private(&path) && fs::read(&path).is_ok_and(|found| found == content.as_bytes()) {
        return Ok(());
    }
    let new = directory.join(format!("{name}%new"));
    // Left over from a crash, perhaps with another's mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, &path)
}

#[cfg(test)]
mod tests {
    use signalbox_core::spi::{Applications, parse};

    use super::*;

    fn application(aliases: &[&str]) -> Application {
        let mut applications = Applications::default();
        for alias in aliases {
            let text = format!(
                "{{action: add_ssl, app_name: a, namespace: n, alias: {alias:?}, ssl: CHAIN, private_key: KEY, \
                 pass_phrase: PASS}}"
            );
            applications.apply(&parse(&text).unwrap());
        }
        applications.iter().next().unwrap().clone()
    }

    fn found(root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        for directory in fs::read_dir(root).unwrap() {
            let directory = directory.unwrap();
            assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
            for file in fs::read_dir(directory.path()).unwrap() {
                let file = file.unwrap();
                assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
                let content = fs::read_to_string(file.path()).unwrap();
                let (directory, file) = (directory.file_name(), file.file_name());
                found.push(format!("{}/{}={content}", directory.display(), file.display()));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn files_come_and_go_with_their_aliases_and_nobody_else_reads_them() {
        let root = std::env::temp_dir().join(format!("signalbox-certificates-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        let certificates = Certificates::open(&root).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);

        let two = application(&["x.example", "../../y"]);
        certificates.settle(&two.key, Some(&two)).unwrap();
        assert_eq!(
            found(&root),
            [
                "n+a/%2E.%2F..%2Fy.crt=CHAIN",
                "n+a/%2E.%2F..%2Fy.key=KEY",
                "n+a/%2E.%2F..%2Fy.pass=PASS",
                "n+a/x.example.crt=CHAIN",
                "n+a/x.example.key=KEY",
                "n+a/x.example.pass=PASS",
            ]
        );
        let one = application(&["x.example"]);
        certificates.settle(&one.key, Some(&one)).unwrap();
        assert_eq!(found(&root).len(), 3);
        // Something has changed a file's mode: it is made anew.
        let key = root.join("n+a/x.example.key");
        fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        fs::create_dir(root.join("gone+app")).unwrap();
        certificates.settle_all([&one].into_iter()).unwrap();
        assert_eq!(found(&root).len(), 3);
        certificates.settle(&one.key, None).unwrap();
        certificates.settle(&one.key, None).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn no_alias_is_too_long_for_a_file() {
        let long = |end: &str| format!("{}{end}", "é".repeat(300));
        assert!(file_name(&long("")).len() <= LONGEST + 17);
        assert_ne!(file_name(&long("a")), file_name(&long("b")));
    }
}
