//! Programs that show rules: run without a shell, with bounds on their time and output.

use std::io::{self, Read as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Time that a program may take.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of an answer.
const MAX_OUTPUT: u64 = 64 << 20;

/// Runs a program of the PATH, and returns what it writes. `None`: there is no such program.
pub(super) fn output(name: &str, arguments: &[&str]) -> Result<Option<Vec<u8>>, String> {
    let mut command = Command::new(name);
    command.args(arguments).env("LC_ALL", "C");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("`{name}` could not be run: {error}")),
    };
    let (sender, answer) = mpsc::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let read = std::thread::Builder::new().name("rules".into()).spawn(move || {
        let mut text = Vec::new();
        let result = stdout.map_or(Ok(0), |stdout| stdout.take(MAX_OUTPUT + 1).read_to_end(&mut text));
        // Without a receiver the time was over.
        let _ = sender.send(result.map(|_| text));
    });
    let text = match read.map(|_| answer.recv_timeout(PROGRAM_TIMEOUT)) {
        Ok(Ok(Ok(text))) if text.len() as u64 <= MAX_OUTPUT => Ok(text),
        Ok(Ok(Ok(_))) => Err("has written more than 64 MiB".to_owned()),
        Ok(Ok(Err(error))) => Err(error.to_string()),
        Ok(Err(_)) => Err("took longer than 10 s".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    if text.is_err() {
        // The program may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| format!("`{name}`: {error}"))?;
    let text = text.map_err(|why| format!("`{name}` {why}"))?;
    if status.success() {
        return Ok(Some(text));
    }
    let mut said = String::new();
    if let Some(stderr) = stderr {
        // The text of an error is for the operator alone.
        let _ = stderr.take(400).read_to_string(&mut said);
    }
    Err(format!(
        "`{name}` has failed ({status}): {}",
        said.lines().next().unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use super::output;

    #[test]
    fn missing_failing_and_too_verbose_programs_are_told_apart() {
        assert_eq!(output("no-such-program-here", &[]), Ok(None));
        assert_eq!(output("echo", &["rules"]), Ok(Some(b"rules\n".to_vec())));
        let failed = output("sh", &["-c", "echo refused >&2; exit 3"]).unwrap_err();
        assert!(failed.contains("refused") && failed.contains('3'), "{failed}");
        assert!(output("yes", &[]).unwrap_err().contains("64 MiB"));
    }
}
