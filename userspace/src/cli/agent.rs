//! `signalbox agent`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::serve::{STOP_TIMEOUT, runtime};
use crate::config;
use crate::source::agent::{self, Agent};

/// Arguments of the agent: either a file, or all that a file would say.
#[derive(clap::Args)]
pub(super) struct AgentArgs {
    /// The agent's configuration file, with the keys version, cluster, kubernetes and balancers.
    #[arg(short = 'f', long, env = "SIGNALBOX_AGENT_CONFIG", value_name = "FILE", conflicts_with_all = ["cluster", "push"])]
    config: Option<PathBuf>,
    /// The cluster's name in the balancers' configuration. The agent watches the cluster with its pod's service
    /// account.
    #[arg(long, value_name = "NAME", required_unless_present = "config", requires = "push")]
    cluster: Option<String>,
    /// The admin API of a balancer, such as https://balancer-1:8089; may be given several times.
    #[arg(long, value_name = "URL")]
    push: Vec<String>,
    /// File with the balancers' token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with the certificate authorities (CAs) of the balancers' certificates.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// PEM file with the agent's certificate, instead of a token.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// PEM file with the certificate's key.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

pub(super) fn run(args: AgentArgs) -> anyhow::Result<ExitCode> {
    let text = match &args.config {
        Some(path) => match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                eprintln!("reading {}: {error}", path.display());
                return Ok(ExitCode::from(3));
            }
        },
        None => as_file(&args),
    };
    let agent: Agent = match config::agent::parse(&text) {
        Ok(agent) => agent,
        Err(errors) => {
            match &args.config {
                Some(path) => eprintln!("{}", errors.with_file(path)),
                None => eprintln!("{errors}"),
            }
            return Ok(ExitCode::from(2));
        }
    };
    let runtime = runtime()?;
    let ended = runtime.block_on(agent::run(agent));
    runtime.shutdown_timeout(STOP_TIMEOUT);
    ended?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the file that corresponds to the arguments, so that errors in both get the same messages.
fn as_file(args: &AgentArgs) -> String {
    let balancers: Vec<_> = args
        .push
        .iter()
        .map(|url| {
            let mut balancer = serde_json::json!({ "url": url });
            for (key, path) in [
                ("token_file", &args.token_file),
                ("ca", &args.ca),
                ("cert", &args.cert),
                ("key", &args.key),
            ] {
                if let Some(path) = path {
                    balancer[key] = serde_json::json!(path);
                }
            }
            balancer
        })
        .collect();
    let agent = serde_json::json!({
        "version": 1, "cluster": args.cluster, "kubernetes": { "in_cluster": true }, "balancers": balancers,
    });
    agent.to_string()
}
