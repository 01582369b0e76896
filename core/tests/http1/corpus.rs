//! The cases of http_desync_guardian: severe ones are refused, compliant ones are sent on unchanged.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;
use signalbox_core::wire::http1::edit::{self, RequestRewrite};
use signalbox_core::wire::http1::framing::{self, FramingError};
use signalbox_core::wire::http1::head_error::HeadError;
use signalbox_core::wire::http1::limits::MessageLimits;
use signalbox_core::wire::http1::parse::{self, ParsedRequest};

/// Cases that the corpus calls compliant and that are refused nevertheless, with the reason.
const STRICTER: [(&str, u16, &str); 10] = [
    ("Empty URI", 400, "a request target is not empty (RFC 9112, 3.2)"),
    ("Compliant URL", 400, "a request target has no fragment (RFC 9112, 3.2)"),
    ("International in URI", 400, "a URI is ASCII (RFC 3986, 2)"),
    ("Correct TE OK", 501, CODING),
    ("Transfer-Encoding: identity and chunked OK", 501, CODING),
    ("Multiple transfer encoding headers in a single request OK", 501, CODING),
    (
        "TE with custom parameters OK",
        501,
        "`chunked` has no parameters (RFC 9112, 7.1)",
    ),
    ("Different Transfer-Encoding headers", 501, CODING),
    ("Different Transfer-Encoding headers combined", 501, CODING),
    ("Transfer-Encoding with a param: chunked;custom_param", 501, CODING),
];
const CODING: &str = "a transfer coding that is not understood (RFC 9112, 6.1)";

#[derive(Deserialize)]
struct Case {
    name: String,
    uri: String,
    method: String,
    version: String,
    headers: Option<Vec<CaseField>>,
    expected: Expected,
}

#[derive(Deserialize)]
struct CaseField {
    name: String,
    value: String,
}

#[derive(Deserialize)]
struct Expected {
    tier: String,
}

/// Folder of the crate's own tests, which cargo has downloaded with the crate.
fn folder() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    // Crates of other platforms have not been downloaded.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    cargo.args(["metadata", "--format-version", "1", "--offline"]);
    cargo.args(["--filter-platform", &platform, "--manifest-path"]);
    cargo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let output = cargo.output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages
        .iter()
        .find(|package| package["name"] == "http_desync_guardian")
        .unwrap();
    let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
    manifest.with_file_name("tests")
}

fn cases() -> Vec<Case> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "yaml"));
    files.sort();
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        serde_saphyr::from_str::<Vec<Case>>(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    files.iter().flat_map(read).collect()
}

/// Backslash escapes that the corpus has beyond YAML's own.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (c, false) => out.push(c),
            (_, true) => match chars.next() {
                Some('x') => {
                    let digits: String = chars.by_ref().take(2).collect();
                    out.push(char::from(u8::from_str_radix(&digits, 16).unwrap()));
                }
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some('n') => out.push('\n'),
                Some(c) => out.push(c),
                None => {}
            },
        }
    }
    out
}

/// Bytes of a case, with the Host field that the corpus leaves out.
fn request(case: &Case) -> Vec<u8> {
    let mut text = format!(
        "{} {} {}\r\n",
        case.method,
        unescape(&case.uri),
        unescape(&case.version)
    );
    let fields = case.headers.as_deref().unwrap_or_default();
    if !fields.iter().any(|field| field.name.eq_ignore_ascii_case("host")) {
        text += "Host: a.test\r\n";
    }
    for field in fields {
        text += &format!("{}: {}\r\n", unescape(&field.name), unescape(&field.value));
    }
    (text + "\r\n").into_bytes()
}

/// Head that is sent on, or the status code of the refusal.
fn sent_on(bytes: &[u8]) -> Result<Vec<u8>, u16> {
    let parsed = parse::request(bytes, &MessageLimits::default()).map_err(HeadError::status)?;
    let ParsedRequest::Head(head) = parsed else {
        panic!("a whole head is {parsed:?}: {:?}", String::from_utf8_lossy(bytes));
    };
    framing::request_body(&head, bytes).map_err(FramingError::status)?;
    Ok(edit::request(&head, bytes, &RequestRewrite::default()).to_vec(bytes))
}

#[test]
fn severe_cases_are_refused_and_compliant_ones_sent_on() {
    let cases = cases();
    let mut wrong = Vec::new();
    for case in &cases {
        let bytes = request(case);
        let sent = sent_on(&bytes);
        let stricter = STRICTER.iter().find(|(name, ..)| *name == case.name);
        let is_right = match (case.expected.tier.as_str(), stricter) {
            ("Severe", _) => sent.is_err(),
            ("Compliant", Some((_, status, _))) => sent == Err(*status),
            ("Compliant", None) => sent.as_ref().is_ok_and(|sent| without_hop(sent) == without_hop(&bytes)),
            _ => true,
        };
        if !is_right {
            let sent = sent.map(|sent| String::from_utf8_lossy(&sent).into_owned());
            wrong.push(format!(
                "{} {}: {:?} -> {sent:?}",
                case.expected.tier,
                case.name,
                String::from_utf8_lossy(&bytes)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let count = |tier: &str| cases.iter().filter(|case| case.expected.tier == tier).count();
    assert!(
        count("Severe") >= 50 && count("Compliant") >= 25,
        "the corpus has become smaller"
    );
}

/// Lines but those that end at the balancer.
fn without_hop(head: &[u8]) -> Vec<&[u8]> {
    let hop: [&[u8]; 4] = [b"connection:", b"keep-alive:", b"te:", b"upgrade:"];
    let is_hop = |line: &&[u8]| hop.iter().any(|name| line.to_ascii_lowercase().starts_with(name));
    head.split(|&b| b == b'\n').filter(|line| !is_hop(line)).collect()
}
