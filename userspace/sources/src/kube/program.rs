//! Program that a kubeconfig names under `exec`: run with a time limit, and killed when that is over.
//!
//! The program's output is a secret, also when it fails: messages have its name and exit status only.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::json;
use signalbox_core::wire::yaml;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::kubeconfig::Exec;

/// Longest output that is read: two certificates and a token are a few kilobytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Interval at which the program's exit is checked once its output has ended.
const EXIT_INTERVAL: Duration = Duration::from_millis(10);

/// Credentials from a program: `status` of an `ExecCredential`.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ExecCredentialStatus {
    pub(super) token: Option<String>,
    /// Certificate in PEM, as is the key.
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

impl ExecCredentialStatus {
    /// Returns whether the program has to be run again. Without an expiry time it is run when the server refuses.
    pub(super) fn has_expired(&self) -> bool {
        let until = self
            .expiration_timestamp
            .as_deref()
            .and_then(|at| at.parse::<Timestamp>().ok());
        until.is_some_and(|until| until <= Timestamp::now())
    }
}

#[derive(Deserialize)]
struct ExecCredential {
    status: Option<ExecCredentialStatus>,
}

/// A running program with all its children: killed when dropped.
struct RunningProgram(Child);

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // The whole process group, because a shell script would otherwise leave its children running.
        if let Ok(group) = i32::try_from(self.0.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.0.wait();
    }
}

/// Runs the program for at most `limit`.
pub(super) async fn run(exec: &Exec, limit: Duration) -> Result<ExecCredentialStatus, String> {
    let Some(name) = &exec.command else {
        return Err("the kubeconfig's `exec` names no `command`".to_owned());
    };
    let shown = format!("the program {name:?} that gets the credentials");
    let mut child = start(exec, name).map_err(|error| {
        let hint = exec.install_hint.as_deref().map(|hint| format!(": {hint}"));
        format!("{shown} cannot be started: {error}{}", hint.unwrap_or_default())
    })?;
    let output = child.0.stdout.take();
    let ended = tokio::time::timeout(limit, async {
        let output = match output {
            Some(output) => read(output.into()).await?,
            None => Vec::new(),
        };
        Ok::<_, std::io::Error>((output, exit(&mut child.0).await?))
    });
    let (output, status) = match ended.await {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => return Err(format!("{shown} cannot be read: {error}")),
        Err(_) => return Err(format!("{shown} has not ended within {limit:?} and was killed")),
    };
    if !status.success() {
        return Err(format!("{shown} failed: {status}"));
    }
    let credential = std::str::from_utf8(&output)
        .ok()
        .and_then(|text| yaml::read_json(text).ok())
        .and_then(|answer| serde_json::from_value::<ExecCredential>(answer).ok());
    let given = credential.and_then(|credential| credential.status);
    let given = given.filter(|given| given.token.is_some() || given.client_certificate_data.is_some());
    given.ok_or_else(|| format!("{shown} has ended well but printed no ExecCredential with a token or a certificate"))
}

fn start(exec: &Exec, name: &str) -> std::io::Result<RunningProgram> {
    let mut spec = json!({ "interactive": false });
    if let Some(cluster) = &exec.cluster {
        spec["cluster"] = json!(cluster);
    }
    let info = json!({ "kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec });
    let mut command = Command::new(name);
    command
        .args(&exec.args)
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    for variable in &exec.env {
        command.env(&variable.name, &variable.value);
    }
    command.spawn().map(RunningProgram)
}

/// Reads all output without a thread: a thread that waits for a program could not be cancelled.
async fn read(output: OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    let most = MAX_ANSWER_BYTES as u64;
    pipe::Receiver::from_owned_fd(output)?
        .take(most)
        .read_to_end(&mut all)
        .await?;
    Ok(all)
}

async fn exit(child: &mut Child) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        tokio::time::sleep(EXIT_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Exec {
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script],
            "env": [{ "name": "GIVEN", "value": "secret" }],
        });
        serde_json::from_value(exec).unwrap()
    }

    #[tokio::test]
    async fn a_program_gives_a_token_for_some_time() {
        let answer = |until: &str| {
            shell(&format!(
                r#"echo '{{"kind":"ExecCredential","status":{{"token":"'$GIVEN'","expirationTimestamp":"{until}"}}}}'"#
            ))
        };
        let given = run(&answer("2999-01-01T00:00:00Z"), Duration::from_secs(60))
            .await
            .unwrap();
        assert_eq!((given.token.as_deref(), given.has_expired()), (Some("secret"), false));
        let given = run(&answer("2001-01-01T00:00:00Z"), Duration::from_secs(60))
            .await
            .unwrap();
        assert!(given.has_expired());
    }

    #[tokio::test]
    async fn a_failed_program_is_named_by_status_without_its_output() {
        for (script, part) in [
            ("echo $GIVEN; echo $GIVEN >&2; exit 7", "exit status: 7"),
            ("echo $GIVEN", "printed no ExecCredential"),
            ("kill -9 $$", "signal: 9"),
        ] {
            let error = run(&shell(script), Duration::from_secs(60)).await.err().unwrap();
            assert!(
                error.contains(r#"program "/bin/sh""#) && error.contains(part),
                "{error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
        let mut missing = shell("");
        missing.command = Some("/nonexistent/login".into());
        missing.install_hint = Some("get it from the shop".into());
        let error = run(&missing, Duration::from_secs(60)).await.err().unwrap();
        assert!(
            error.contains("/nonexistent/login") && error.contains("get it from the shop"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed_with_all_that_it_has_started() {
        let file = std::env::temp_dir().join(format!("signalbox-program-{}", std::process::id()));
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let began = Instant::now();
        let error = run(&shell(&script), Duration::from_secs(2)).await.err().unwrap();
        assert!(error.contains("has not ended within 2s and was killed"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60));
        let sleeper = std::fs::read_to_string(&file).unwrap();
        let _ = std::fs::remove_file(&file);
        // The parent is gone, and the process that reaps its child may be a little later.
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", sleeper.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        while !is_gone() && began.elapsed() < Duration::from_secs(60) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(is_gone(), "the program's child lives on");
    }
}
