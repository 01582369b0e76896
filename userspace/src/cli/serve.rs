//! `run`: runs the balancer until it is told to stop.

use std::process::ExitCode;
use std::time::Duration;

use signalbox_cli::config_exit_code;

use super::RunArgs;
use crate::app::Options;
use crate::{app, config};

/// Nice value of the control plane: next to busy workers it gets about a third of a CPU.
const NICE_INCREMENT: i32 = 5;

/// Time for tasks to end with the process. Programs that they wait for are killed in that time. A blocked thread, as in
/// the look-up of a name, is left behind.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes the control plane's runtime: one thread, separate from the workers.
pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("control")
        // The control plane has a lower priority: making a table of many thousand routes must not delay a worker's
        // connections.
        .on_thread_start(|| crate::sys::set_nice(NICE_INCREMENT))
        .enable_all()
        .build()?)
}

/// Returns the number of CPUs that the process may use: there is one worker for each.
pub fn default_workers() -> usize {
    std::thread::available_parallelism()
        .map_or(1, std::num::NonZero::get)
        .min(64)
}

/// Runs the balancer until it is told to stop.
pub(super) fn serve(run: RunArgs) -> anyhow::Result<ExitCode> {
    // Done first, so that the sockets do not stay open without a server if this process fails to start.
    let kept = app::kept_sockets();
    let parsed = match config::load(&run.config) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("{error}");
            return Ok(config_exit_code(&error));
        }
    };
    for warning in &parsed.warnings {
        tracing::warn!(line = warning.line, path = warning.path, "{}", warning.message);
    }
    let options = Options {
        model: parsed.model,
        file: Some((run.config, parsed.text)),
        steering: run.steering,
        workers: run.workers.map_or_else(default_workers, usize::from),
        takeover: run.takeover,
        kept,
        successor: Some(app::SuccessorCommand::of_this_process()?),
    };
    let runtime = runtime()?;
    let ended = runtime.block_on(async { app::start(options).await?.run().await });
    runtime.shutdown_timeout(STOP_TIMEOUT);
    ended?;
    // Remaining flows end with the process.
    std::process::exit(0)
}
