//! The admin API: state for everybody who may reach it, changes for the owner of the unix socket.
//!
//! The same routes on both; on TCP everything that changes something answers 403. Reads counters and snapshots,
//! changes nothing but through [`Control`].

pub mod api;
mod applications;
mod auth;
mod awaited;
pub mod cut_flows;
mod events;
mod explain;
pub mod histogram;
mod learn;
pub mod metrics;
mod mutate;
mod openapi;
mod rotations;
mod shield;
mod tls;
pub mod views;
mod weights;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

use crate::control::Control;

/// The API's servers. The unix socket's file goes when they are closed.
pub struct Servers {
    tasks: Vec<JoinHandle<()>>,
    socket: PathBuf,
}

/// How long a successor waits for the address of the process it has relieved.
const HAND_OVER: Duration = Duration::from_secs(5);

/// Opens the API. In a takeover the addresses may be the predecessor's for a moment more, and a failure is no reason
/// to end: by then nobody else serves.
pub async fn start(
    control: &Control,
    addr: Option<SocketAddr>,
    socket: &Path,
    takeover: bool,
) -> anyhow::Result<Servers> {
    match open(control, addr, socket, takeover).await {
        Err(error) if takeover => {
            tracing::error!(
                error = format!("{error:#}"),
                "The admin API on TCP is not available; the rest is served."
            );
            open(control, None, socket, takeover).await.or_else(|error| {
                tracing::error!(error = format!("{error:#}"), "Nor is the admin socket.");
                Ok(Servers {
                    tasks: Vec::new(),
                    socket: PathBuf::new(),
                })
            })
        }
        outcome => outcome,
    }
}

async fn open(control: &Control, addr: Option<SocketAddr>, socket: &Path, takeover: bool) -> anyhow::Result<Servers> {
    let mut tasks = Vec::new();
    let settings = control.shared.snapshot.load().model.admin.clone();
    if let Some(addr) = addr {
        let listener = listen(addr, takeover).await.with_context(|| {
            format!("listening on {addr} for the admin API: free it, or set admin.listen to another address")
        })?;
        let gate = auth::Gate::new(settings.token_file, Arc::clone(&control.shared));
        let app = api::router(control.clone())
            .layer(axum::middleware::from_fn_with_state(gate, auth::gate))
            .into_make_service_with_connect_info::<tls::Peer>();
        let ended = |outcome: std::io::Result<()>| {
            if let Err(error) = outcome {
                tracing::error!(%error, "The admin API ended.");
            }
        };
        tasks.push(match &settings.tls {
            Some(tls) => {
                let listener = tls::Secured::new(listener, tls).context("the admin API's TLS")?;
                tokio::spawn(async move { ended(axum::serve(listener, app).await) })
            }
            None => tokio::spawn(async move { ended(axum::serve(listener, app).await) }),
        });
    }
    let listener = unix(socket).with_context(|| format!("opening the admin socket {}", socket.display()))?;
    let app = api::router(control.clone())
        .layer(axum::middleware::from_fn(mutate::audit))
        .into_make_service_with_connect_info::<mutate::Caller>();
    tasks.push(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "The admin socket ended.");
        }
    }));
    Ok(Servers {
        tasks,
        socket: socket.to_owned(),
    })
}

async fn listen(addr: SocketAddr, patient: bool) -> std::io::Result<TcpListener> {
    let began = std::time::Instant::now();
    loop {
        match TcpListener::bind(addr).await {
            Err(error) if patient && error.kind() == std::io::ErrorKind::AddrInUse && began.elapsed() < HAND_OVER => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            outcome => return outcome,
        }
    }
}

fn unix(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Left over from a process that was killed, or of the one that we have taken over from.
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Never open to others, not even for the moment between bind and chmod.
    let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    nix::sys::stat::umask(mask);
    let listener = listener?;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

impl Servers {
    /// Gives the addresses to a successor, which has replaced the socket's file already or will.
    pub fn retire(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        self.socket = PathBuf::new();
    }

    /// Closes the API.
    pub fn close(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        if !self.socket.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.socket);
            let _ = fs::remove_file(crate::takeover::path(&self.socket));
        }
    }
}
