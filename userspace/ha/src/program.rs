//! Programs of the system, run to their end.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Time limit of a program of the system.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
/// Most characters of a program's complaint that an error repeats.
const MAX_COMPLAINT_CHARS: usize = 500;

/// Runs a program with input, and returns its output.
pub(crate) async fn output(program: &str, args: &[&str], input: &str) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(args).kill_on_drop(true);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let exchange = async {
        let mut child = command
            .spawn()
            .with_context(|| format!("starting `{program}`: is it installed?"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input reports that by its status.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        anyhow::Ok(child.wait_with_output().await?)
    };
    let shown = || format!("{program} {}", args.join(" "));
    let Ok(output) = tokio::time::timeout(PROGRAM_TIMEOUT, exchange).await else {
        bail!("`{}` has not ended within {} s", shown(), PROGRAM_TIMEOUT.as_secs());
    };
    let output = output?;
    if !output.status.success() {
        let complaint = [&output.stderr[..], &output.stdout[..]].concat();
        let complaint = String::from_utf8_lossy(&complaint);
        let complaint: String = complaint.trim().chars().take(MAX_COMPLAINT_CHARS).collect();
        bail!("`{}`: {}: {complaint}", shown(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
