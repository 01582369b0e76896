//! `signalbox rotate`.

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hyper::Method;
use serde_json::{Value, json};

use super::client;
use super::client::SocketArgs;
use super::show::{self, TableArgs};
use crate::source::client::percent_encoded;

/// Interval at which the progress of a job is requested.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Subcommand)]
pub(super) enum RotateCommand {
    /// Take subjects out of rotation: they get no new flows, and flows that are still open at the time-out are closed.
    Out {
        /// Hosts (east-1, or east/east-1), clusters, applications (app.example.com) or gears. If a name is ambiguous,
        /// put its kind in front: host:east/east-1, cluster:east, application:app.example.com, gear:ID.
        #[arg(required_unless_present = "machine")]
        names: Vec<String>,
        /// Every host at this IP address in every cluster, including hosts discovered later. May be given several
        /// times.
        #[arg(long, value_name = "ADDRESS")]
        machine: Vec<IpAddr>,
        /// Reason, for others to read in `rotate list`.
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        reason: String,
        /// Close the remaining flows after this many seconds [default: the configuration's `drain`, or 120 if it is not
        /// set].
        #[arg(long, value_name = "SECONDS")]
        timeout: Option<f64>,
        /// Proceed even if an application is left without a host, or if no host has a machine's address yet.
        #[arg(long)]
        force: bool,
        /// Also rotate on every balancer of the configuration's `balancers`; succeeds only if all have done it.
        #[arg(long)]
        all_balancers: bool,
        /// Return at once with the job's number; do not wait until no flow is left.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        at: SocketArgs,
    },
    /// Take subjects into rotation again: they get new flows.
    In {
        #[arg(required_unless_present = "machine")]
        names: Vec<String>,
        /// Hosts that were taken out by this IP address. May be given several times.
        #[arg(long, value_name = "ADDRESS")]
        machine: Vec<IpAddr>,
        /// Also rotate on every balancer of the configuration's `balancers`; succeeds only if all have done it.
        #[arg(long)]
        all_balancers: bool,
        #[command(flatten)]
        at: SocketArgs,
    },
    /// Show the subjects that are out: why, since when, and who took them out.
    List(TableArgs),
    /// Show the jobs: their progress, and the flows that they wait for.
    Jobs(TableArgs),
    /// Cancel a job: its subjects are back in rotation, and their flows continue.
    Cancel {
        job: u64,
        #[command(flatten)]
        at: SocketArgs,
    },
}

pub(super) fn run(what: RotateCommand) -> anyhow::Result<ExitCode> {
    match what {
        RotateCommand::Out {
            names,
            machine,
            reason,
            timeout,
            force,
            all_balancers,
            no_wait,
            at,
        } => {
            let names = with_machines(names, &machine);
            let mut body = json!({ "action": "out", "names": names, "force": force, "all_balancers": all_balancers });
            if !reason.is_empty() {
                body["reason"] = json!(reason);
            }
            if let Some(timeout) = timeout {
                body["timeout"] = json!(timeout);
            }
            let answer = start(&at.socket, &body)?;
            if no_wait {
                println!("job {}", answer["job"]["id"]);
                return Ok(ExitCode::SUCCESS);
            }
            let mut code = wait(&at.socket, &path_of(&answer["job"]), answer["job"].clone())?;
            for part in answer["balancers"].as_array().into_iter().flatten() {
                let (Some(url), Some(id)) = (part["url"].as_str(), part["job"].as_u64()) else {
                    continue;
                };
                println!("{url}:");
                let path = format!("/api/v1/jobs/{id}/elsewhere?url={}", percent_encoded(url));
                let job = client::change(&at.socket, &Method::GET, &path, None)?["job"].take();
                let there = wait(&at.socket, &path, job)?;
                code = if there == ExitCode::SUCCESS { code } else { there };
            }
            Ok(code)
        }
        RotateCommand::In {
            names,
            machine,
            all_balancers,
            at,
        } => {
            let names = with_machines(names, &machine);
            let body = json!({ "action": "in", "names": names, "all_balancers": all_balancers });
            let job = start(&at.socket, &body)?["job"].take();
            println!("in rotation: {}", subjects(&job));
            Ok(ExitCode::SUCCESS)
        }
        RotateCommand::List(table) => show::print("rotations", "/api/v1/rotations", &table),
        RotateCommand::Jobs(table) => show::print("jobs", "/api/v1/rotations", &table),
        RotateCommand::Cancel { job, at } => {
            let answer = client::change(&at.socket, &Method::DELETE, &format!("/api/v1/jobs/{job}"), None)?;
            println!("called off: {}", subjects(&answer["job"]));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Adds machines to names in the API's form: an address with its kind in front.
fn with_machines(mut names: Vec<String>, machines: &[IpAddr]) -> Vec<String> {
    names.extend(machines.iter().map(|address| format!("machine:{address}")));
    names
}

fn start(socket: &Path, body: &Value) -> anyhow::Result<Value> {
    client::change(socket, &Method::POST, "/api/v1/rotations", Some(body))
}

fn path_of(job: &Value) -> String {
    format!("/api/v1/jobs/{}", job["id"])
}

/// Waits until no flow is left. Fails if another user cancels the job.
fn wait(socket: &Path, path: &str, mut job: Value) -> anyhow::Result<ExitCode> {
    let mut said = String::new();
    while job["ended"].is_null() {
        let waits: Vec<_> = job["waits_for"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(what, n)| format!("{what} {n}"))
            .collect();
        let text = format!(
            "job {}: {} {}",
            job["id"],
            job["progress"].as_str().unwrap_or_default(),
            waits.join(", ")
        );
        if text != said {
            eprintln!("{text}");
            said = text;
        }
        std::thread::sleep(PROGRESS_INTERVAL);
        job = client::change(socket, &Method::GET, path, None)?["job"].take();
    }
    let closed = job["closed_connections"].as_u64().unwrap_or_default();
    match job["progress"].as_str() {
        Some("cancelled") => {
            println!("called off: {}", subjects(&job));
            Ok(ExitCode::FAILURE)
        }
        _ if closed > 0 => {
            println!(
                "out of rotation: {}; {closed} connections were closed at the deadline",
                subjects(&job)
            );
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            println!("out of rotation: {}", subjects(&job));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn subjects(job: &Value) -> String {
    let all = job["subjects"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    all.collect::<Vec<_>>().join(" ")
}
