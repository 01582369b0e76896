//! A successor that this process starts itself: the program that is on disk by now, with the same arguments, takes over
//! the listening sockets, and the service manager is told who the main process is. So a unit of systemd gets another
//! program without a refused connection (`sd_notify(3)`, `MAINPID=`).

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;

use tokio::process::{Child, Command};

/// Variable by which systemd says whose watchdog it is; without it, the watchdog is anybody's who is told of it.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// Command line that a successor is started with.
pub struct SuccessorCommand {
    program: PathBuf,
    args: Vec<OsString>,
}

impl SuccessorCommand {
    /// Command line of this process, for its program's path as it is now: later another file may be there.
    pub fn of_this_process() -> std::io::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            args: with_takeover(std::env::args_os().skip(1)),
        })
    }

    fn spawn(&self) -> std::io::Result<Child> {
        Command::new(&self.program)
            .args(&self.args)
            .env_remove(WATCHDOG_PID)
            .spawn()
    }
}

fn with_takeover(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let takeover = OsString::from("--takeover");
    args.filter(|word| *word != takeover)
        .chain([takeover.clone()])
        .collect()
}

/// The successor, while it starts.
pub(super) struct Successor {
    command: Option<SuccessorCommand>,
    starting: Option<Child>,
}

impl Successor {
    pub(super) const fn new(command: Option<SuccessorCommand>) -> Self {
        Self {
            command,
            starting: None,
        }
    }

    /// Starts the successor, unless one is starting.
    pub(super) fn start(&mut self) {
        let Some(command) = &self.command else {
            tracing::warn!("SIGUSR2: only `signalbox run` starts a successor.");
            return;
        };
        if let Some(child) = &self.starting {
            tracing::warn!(pid = child.id(), "SIGUSR2: a successor is starting already.");
            return;
        }
        let program = command.program.display();
        match command.spawn() {
            Ok(child) => {
                tracing::info!(pid = child.id(), %program, "Starting a successor.");
                self.starting = Some(child);
            }
            Err(error) => tracing::error!(%error, %program, "The successor cannot be started: this process goes on."),
        }
    }

    /// Waits until the starting successor ends, which is never what was meant.
    pub(super) async fn ended(&mut self) -> Option<ExitStatus> {
        let child = match &mut self.starting {
            Some(child) => child,
            None => std::future::pending().await,
        };
        let status = child.wait().await;
        self.starting = None;
        status.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_gets_the_same_words_and_takes_over() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let expected = words("run --config a.yaml --takeover");
        for line in [
            "run --config a.yaml",
            "run --takeover --config a.yaml",
            "run --config a.yaml --takeover",
        ] {
            assert_eq!(with_takeover(words(line).into_iter()), expected, "{line}");
        }
    }
}
