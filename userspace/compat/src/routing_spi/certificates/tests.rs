//! Tests of certificate files: they come and go, and only signalbox may read them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use signalbox_core::discovered::spi::{Applications, parse};

use super::*;
use signalbox_sources::alias_file::MAX_ALIAS_BYTES;

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
fn certificate_files_follow_their_aliases_and_stay_private() {
    let root = std::env::temp_dir().join(format!("signalbox-certificates-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
    let certificates = CertificateFiles::open(&root).unwrap();
    assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o777, 0o700);

    let two = application(&["x.example", "../../y"]);
    certificates.reconcile(&two.key, Some(&two)).unwrap();
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
    certificates.reconcile(&one.key, Some(&one)).unwrap();
    assert_eq!(found(&root).len(), 3);
    // Another program has changed a file's mode: the file is written again.
    let key = root.join("n+a/x.example.key");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    fs::create_dir(root.join("gone+app")).unwrap();
    certificates.reconcile_all([&one].into_iter()).unwrap();
    assert_eq!(found(&root).len(), 3);
    certificates.reconcile(&one.key, None).unwrap();
    certificates.reconcile(&one.key, None).unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn no_alias_is_too_long_for_a_file() {
    let long = |end: &str| format!("{}{end}", "é".repeat(300));
    assert!(file_name(&long("")).len() <= MAX_ALIAS_BYTES + 17);
    assert_ne!(file_name(&long("a")), file_name(&long("b")));
}
