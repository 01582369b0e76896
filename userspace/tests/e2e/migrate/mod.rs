//! Migrations: a good cluster gets everything without a failed request, a bad one is rolled back, an operator pauses,
//! resumes and aborts, a killed or replaced balancer continues, testers come first, and a set of balancers moves
//! together.

mod by_file;
mod kept;
mod moves;
mod operator;
mod probed;
mod rolled_back;
mod set;
mod testers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lab;

use lab::{Lab, SOON, Signalbox, config, eventually, http, signalbox};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";
const APP: &str = "a.test";

/// Clusters east and west with a host each, and a route that only east serves.
fn body(routing: &str, west: &[&str]) -> String {
    let east = config::cluster("east", &[], &["east-1"]);
    let west = config::cluster("west", west, &["west-1"]);
    format!(
        "listeners:\n  - {{ name: http, protocol: http, routing: {routing}, listen: [\"{HTTP}\"] }}\n\
         clusters:\n{east}{west}routes:\n  - {{ host: {APP}, clusters: {{ east: 1, west: 0 }} }}\n"
    )
}

/// Current weights of the name.
fn shares(sb: &Signalbox) -> Value {
    let route = signalbox::find(&sb.json("/api/v1/routes")["routes"], "host", APP);
    let shares = route["clusters"].as_array().cloned().unwrap_or_default();
    shares
        .iter()
        .map(|share| json!([share["name"], share["weight"]]))
        .collect()
}

/// The newest migration.
fn newest(sb: &Signalbox) -> Value {
    let all = sb.json("/api/v1/migrations")["migrations"].as_array().cloned();
    all.and_then(|all| all.last().cloned()).unwrap_or(Value::Null)
}

fn wait_for(sb: &Signalbox, what: &str, is_so: impl Fn(&Value) -> bool) {
    assert!(eventually(SOON, || is_so(&newest(sb))), "{what}: {}", newest(sb));
}

/// Words of a migration from east to west, in steps that are held for `hold`, with further words.
fn migration<'a>(names: &'a str, steps: &'a str, hold: &'a str, further: &'a str) -> Vec<&'a str> {
    let words = [
        "migrate", names, "--from", "east", "--to", "west", "--steps", steps, "--hold", hold,
    ];
    words.into_iter().chain(further.split(' ')).collect()
}

/// The signalbox command, which must succeed.
fn cli(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The signalbox command, which must fail; its complaint.
fn refusal(sb: &Signalbox, words: &[&str]) -> String {
    let output = sb.cli(words);
    assert!(!output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Clients ask while `work` is done. Returns its result, the number of answers, and the failures.
fn under_load<T>(lab: &Lab, work: impl FnOnce() -> T) -> (T, usize, Vec<String>) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            lab.client.run(|| {
                let (mut answers, mut failures) = (0, Vec::new());
                while !stop.load(Ordering::SeqCst) {
                    match http::ask_here(HTTP, APP) {
                        Ok(_) => answers += 1,
                        Err(error) => failures.push(error),
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                (answers, failures)
            })
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::SeqCst);
        let (answers, failures) = asking.join().unwrap();
        match result {
            Ok(result) => (result, answers, failures),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
