//! `signalbox rotate`.

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hyper::Method;
use signalbox_api::rotations::{
    Action, JobAnswer, JobView, PeerResult, Progress, RotationAnswer, RotationBody, RotationsAnswer,
};

use super::client;
use super::client::SocketArgs;
use super::show::{self, TableArgs};
use signalbox_sources::client::percent_encoded;

const PATH: &str = "/api/v1/rotations";

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
            let body = RotationBody {
                action: Action::Out,
                names,
                timeout,
                force,
                all_balancers,
                reason,
            };
            let answer = start(&at.socket, &body)?;
            if no_wait {
                println!("job {}", answer.job.id);
                return Ok(ExitCode::SUCCESS);
            }
            let path = format!("/api/v1/jobs/{}", answer.job.id);
            let mut code = wait(&at.socket, &path, answer.job)?;
            for PeerResult { url, job, .. } in &answer.balancers {
                let Some(id) = job else {
                    continue;
                };
                println!("{url}:");
                let path = format!("/api/v1/jobs/{id}/elsewhere?url={}", percent_encoded(url));
                let there = wait(&at.socket, &path, job_at(&at.socket, &path)?)?;
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
            let body = RotationBody {
                action: Action::In,
                names,
                all_balancers,
                ..RotationBody::default()
            };
            println!("in rotation: {}", subjects(&start(&at.socket, &body)?.job));
            Ok(ExitCode::SUCCESS)
        }
        RotateCommand::List(table) => show::print(PATH, &table, |of: &RotationsAnswer, form| {
            show::rows(&of.rotations, form)
        }),
        RotateCommand::Jobs(table) => {
            show::print(PATH, &table, |of: &RotationsAnswer, form| show::rows(&of.jobs, form))
        }
        RotateCommand::Cancel { job, at } => {
            let path = format!("/api/v1/jobs/{job}");
            let answer: JobAnswer = client::send(&at.socket, &Method::DELETE, &path, None::<&()>)?;
            println!("called off: {}", subjects(&answer.job));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Adds machines to names in the API's form: an address with its kind in front.
fn with_machines(mut names: Vec<String>, machines: &[IpAddr]) -> Vec<String> {
    names.extend(machines.iter().map(|address| format!("machine:{address}")));
    names
}

fn start(socket: &Path, body: &RotationBody) -> anyhow::Result<RotationAnswer> {
    client::send(socket, &Method::POST, PATH, Some(body))
}

fn job_at(socket: &Path, path: &str) -> anyhow::Result<JobView> {
    Ok(client::read::<JobAnswer>(socket, path)?.job)
}

/// Waits until no flow is left. Fails if another user cancels the job.
fn wait(socket: &Path, path: &str, mut job: JobView) -> anyhow::Result<ExitCode> {
    let mut said = String::new();
    while job.ended.is_none() {
        let waits: Vec<_> = job.waits_for.iter().map(|(what, n)| format!("{what} {n}")).collect();
        let text = format!("job {}: {} {}", job.id, job.progress.as_str(), waits.join(", "));
        if text != said {
            eprintln!("{text}");
            said = text;
        }
        std::thread::sleep(PROGRESS_INTERVAL);
        job = job_at(socket, path)?;
    }
    let (all, closed) = (subjects(&job), job.closed_connections);
    match job.progress {
        Progress::Cancelled => {
            println!("called off: {all}");
            return Ok(ExitCode::FAILURE);
        }
        _ if closed > 0 => println!("out of rotation: {all}; {closed} connections were closed at the deadline"),
        _ => println!("out of rotation: {all}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn subjects(job: &JobView) -> String {
    job.subjects.join(" ")
}
