//! A kernel before 5.14, which refuses most programs: listeners serve, and every other requested feature is named.

use std::process::Command;

use serde_json::Value;

use crate::lab::callers::is_greeted;
use crate::lab::services::greeter;
use crate::lab::signalbox::write_config;
use crate::lab::{Lab, SOON, Signalbox, eventually, lab_test};

#[lab_test]
fn an_old_kernel_serves_listeners_and_names_what_it_refuses() {
    let lab = Lab::new();
    let doctor = Command::new(crate::lab::signalbox::binary())
        .args(["doctor", "-o", "json"])
        .output()
        .unwrap();
    let said: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(doctor.status.code(), Some(1), "{said}");
    let programs = said["programs"].as_array().unwrap();
    let refused: Vec<&Value> = programs
        .iter()
        .filter(|program| !program["refused"].is_null())
        .collect();
    assert!(!refused.is_empty(), "{said}");
    for program in refused {
        assert!(!program["refused"]["reason"].as_str().unwrap().is_empty(), "{program}");
    }

    let _server = greeter(lab.host("east-1"), "[::]:3306", "east-1");
    let body = "shield: { deny: [10.1.0.3] }\nservices:\n  - { name: db, protocol: tcp, listen: [\"10.1.0.1:5432\"], cluster: east }\n\
         listeners:\n  - { name: web, protocol: tcp, listen: [\"10.1.0.1:8080\"], cluster: east }\n\
         clusters:\n  - name: east\n    health: { tcp: { port: 3306 }, interval: 1s, timeout: 500ms, rise: 1 }\n    \
         hosts: [{ name: east-1, address: 10.2.0.2, tcp: 3306 }]\n";
    let config = write_config(&lab, "signalbox.yaml", body);
    let mut sb = Signalbox::spawn_file(&lab, "signalbox", &config, &[]);
    let serves = || sb.try_get("/readyz").is_ok() && sb.host("east-1")["health"] == "healthy";
    assert!(eventually(SOON, serves), "{}", sb.proc.log());
    assert!(is_greeted(&lab, "10.1.0.2", "10.1.0.1:8080"));
    let (status, text) = sb.get("/readyz?verbose");
    assert_eq!(status, 503, "{text}");
    for what in ["shield: ", "services: ", "kernel 5.14 or later"] {
        assert!(text.contains(what), "{what}: {text}");
    }
    sb.term();
    assert_eq!(sb.proc.exit_code(SOON), 0);
}
