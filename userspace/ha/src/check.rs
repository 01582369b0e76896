//! Checks of this node: its port, or the operator's program.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use signalbox_core::model::ha::HaWatch;
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::Settings;

/// Checks the port or runs the script; the error describes the fault. Whether signalbox is ready is not looked at.
pub async fn once(settings: &Settings) -> Result<(), String> {
    let HaWatch {
        port, interval, script, ..
    } = &settings.ha.watch;
    match script {
        Some(script) => run_script(script, *interval).await,
        None if *port == 0 => Ok(()),
        None => connect(SocketAddr::new(settings.own_address(), *port), *interval).await,
    }
}

async fn run_script(script: &Path, limit: Duration) -> Result<(), String> {
    let shown = script.display();
    let mut command = Command::new(script);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    match tokio::time::timeout(limit, command.status()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("{shown}: {status}")),
        Ok(Err(error)) => Err(format!("{shown}: {error}")),
        Err(_) => Err(format!("{shown} has not ended within {} ms", limit.as_millis())),
    }
}

async fn connect(addr: SocketAddr, limit: Duration) -> Result<(), String> {
    match tokio::time::timeout(limit, TcpStream::connect(addr)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("{addr}: {error}")),
        Err(_) => Err(format!("{addr} has not answered within {} ms", limit.as_millis())),
    }
}
