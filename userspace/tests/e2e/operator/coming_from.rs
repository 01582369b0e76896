//! The examples of docs/from-*.md, as an operator would try them: each in a file, with the files that it names, under
//! `signalbox check --strict`.

use crate::lab::signalbox::binary;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use signalbox_lab::router::certificate;

const PAGES: [(&str, &str); 3] = [
    ("from-haproxy.md", include_str!("../../../../docs/from-haproxy.md")),
    (
        "from-openshift-router.md",
        include_str!("../../../../docs/from-openshift-router.md"),
    ),
    ("from-f5.md", include_str!("../../../../docs/from-f5.md")),
];

/// Directory of the files that examples name.
const NAMED: &str = "/etc/signalbox";

fn examples(page: &str) -> impl Iterator<Item = &str> {
    page.split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
}

/// Makes the files below `dir` that a configuration names: certificates with their keys, lists, tokens, directories.
fn make_named_files(dir: &Path, text: &str) {
    let pem = certificate(dir, "named", &["app.example.com"]).unwrap();
    let pem = fs::read_to_string(pem).unwrap();
    let start = format!("{}/", dir.display());
    let names: BTreeSet<&str> = text
        .split(&start)
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !(c.is_alphanumeric() || "-._".contains(c))).next())
        .collect();
    for name in names {
        let path = dir.join(name);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("d") => {
                fs::create_dir_all(&path).unwrap();
                fs::write(path.join("app.example.com.pem"), &pem).unwrap();
            }
            Some("pem" | "crt" | "key") => fs::write(&path, &pem).unwrap(),
            _ => fs::write(&path, "192.0.2.0/24\n").unwrap(),
        }
    }
}

fn check_strictly(file: &Path) -> Output {
    let mut check = Command::new(binary());
    check
        .args(["check", "--strict", "--config"])
        .arg(file)
        .output()
        .unwrap()
}

#[test]
fn each_example_is_accepted_by_check() {
    for (page, text) in PAGES {
        for (at, example) in examples(text).enumerate() {
            let dir = std::env::temp_dir().join(format!("signalbox-{page}-{at}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            let text = example.replace(NAMED, &dir.display().to_string());
            make_named_files(&dir, &text);
            let file = dir.join("signalbox.yaml");
            fs::write(&file, text).unwrap();
            let output = check_strictly(&file);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{page}, example {}: {said}", at + 1);
            fs::remove_dir_all(dir).unwrap();
        }
    }
}
