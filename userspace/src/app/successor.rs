//! A successor that this process starts itself: the program now on disk, with the same arguments, takes over the
//! listening sockets, and the service manager is told the new main process. This gives a systemd unit a new program
//! without a refused connection (`sd_notify(3)`, `MAINPID=`).
//!
//! The successor is not a child of this process: systemd waits only for the end of its own children, and kills another
//! main process at once when the unit stops. A launcher starts it and ends, so that this process' parent inherits it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

/// Variable with the process whose watchdog it is. Without it, any process that knows the watchdog may use it.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// First word of a launcher's command line. The successor's words follow.
const LAUNCH: &str = "--launch-successor";

/// Starts a successor and returns at once, if this process is a launcher; otherwise `None`.
pub fn launch() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != LAUNCH {
        return None;
    }
    let program = std::env::current_exe();
    let started = program.and_then(|program| std::process::Command::new(program).args(words).spawn());
    Some(match started {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: starting the successor: {error}");
            ExitCode::FAILURE
        }
    })
}

/// Command line of a successor.
pub struct SuccessorCommand {
    program: PathBuf,
    args: Vec<OsString>,
}

impl SuccessorCommand {
    /// Command line of this process, with its program's current path: another file may be there later.
    pub fn of_this_process() -> std::io::Result<Self> {
        Ok(Self {
            program: std::env::current_exe()?,
            args: with_takeover(std::env::args_os().skip(1)),
        })
    }

    fn start(&self) -> io::Result<StartingSuccessor> {
        let (own, other) = std::os::unix::net::UnixStream::pair()?;
        own.set_nonblocking(true)?;
        let launcher = Command::new(&self.program)
            .arg(LAUNCH)
            .args(&self.args)
            .env_remove(WATCHDOG_PID)
            .stdin(Stdio::from(OwnedFd::from(other)))
            .spawn()?;
        Ok(StartingSuccessor {
            launcher,
            link: UnixStream::from_std(own)?,
        })
    }
}

fn with_takeover(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let takeover = OsString::from("--takeover");
    args.filter(|word| *word != takeover)
        .chain([takeover.clone()])
        .collect()
}

/// A successor that has been started.
struct StartingSuccessor {
    launcher: Child,
    /// Ends with the successor, whose standard input is the other end.
    link: UnixStream,
}

impl StartingSuccessor {
    /// Waits until launcher and successor have ended. May be cancelled and called again.
    async fn ended(&mut self) {
        if let Err(error) = self.launcher.wait().await {
            tracing::warn!(%error, "The launcher of a successor cannot be waited for.");
        }
        let mut byte = [0];
        while matches!(self.link.read(&mut byte).await, Ok(1)) {}
    }
}

/// The successor, while it starts.
pub(super) struct Successor {
    command: Option<SuccessorCommand>,
    starting: Option<StartingSuccessor>,
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
        if self.starting.is_some() {
            tracing::warn!("SIGUSR2: a successor is starting already.");
            return;
        }
        let program = command.program.display();
        match command.start() {
            Ok(starting) => {
                tracing::info!(%program, "Starting a successor.");
                self.starting = Some(starting);
            }
            Err(error) => tracing::error!(%error, %program, "The successor cannot be started: this process continues."),
        }
    }

    /// Waits until the starting successor ends, which is always a failure.
    pub(super) async fn ended(&mut self) {
        match &mut self.starting {
            Some(starting) => starting.ended().await,
            None => std::future::pending().await,
        }
        self.starting = None;
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
