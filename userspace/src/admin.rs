//! The admin API: everyone who can reach it may read the state, and the owner of the unix socket may change it.
//!
//! The TCP address and the unix socket have the same routes. Over TCP, a change needs a token or a client certificate
//! (`auth`). Handlers read counters and snapshots, and change state only through [`Control`].

pub mod api;
mod applications;
mod asked_path;
mod asked_url;
mod auth;
mod body;
mod certificates;
mod config_diff;
mod connection_limit;
mod discovery;
mod events;
mod explain;
mod export;
mod exposed;
mod fast_path;
mod figures;
mod ha;
mod host_header;
mod live;
mod log;
pub mod metrics;
mod migrations;
mod mutate;
mod openapi;
mod pending_sources;
mod problem;
mod readiness;
mod reply;
mod rotations;
mod route_policy;
mod route_selection;
mod serve;
mod shield;
mod socket;
mod tier;
mod tls;
mod ui;
mod urls;
pub mod views;
mod weights;

pub use socket::check as check_socket;
pub use tls::problem as tls_problem;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use signalbox_core::limits::descriptors::MAX_ADMIN_SOCKET_CONNECTIONS;
use signalbox_core::limits::stats::Gauge;
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinHandle;

use crate::control::Control;
use crate::state::{AdminStats, Shared};

/// The API's servers. The unix socket's file is removed when they are closed.
pub struct AdminServers {
    tasks: Vec<JoinHandle<()>>,
    socket: PathBuf,
}

/// Time that a successor waits for the address of its predecessor.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a process waits for the API of its successor: as long as the verifier may take on a slow machine.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(60);

/// Opens the API. In a takeover the predecessor may still have the addresses for a moment. A failure then does not end
/// the process, because no other process serves by then.
pub async fn start(
    control: &Control,
    addr: Option<SocketAddr>,
    socket: &Path,
    takeover: bool,
) -> anyhow::Result<AdminServers> {
    match open(control, addr, socket, takeover).await {
        Err(error) if takeover => {
            tracing::error!(
                error = format!("{error:#}"),
                "The admin API on TCP is not available; the rest is served."
            );
            open(control, None, socket, takeover).await.or_else(|error| {
                tracing::error!(
                    error = format!("{error:#}"),
                    "The admin socket is not available either; the rest is served."
                );
                Ok(AdminServers {
                    tasks: Vec::new(),
                    socket: PathBuf::new(),
                })
            })
        }
        outcome => outcome,
    }
}

async fn open(
    control: &Control,
    addr: Option<SocketAddr>,
    socket: &Path,
    takeover: bool,
) -> anyhow::Result<AdminServers> {
    let mut tasks = Vec::new();
    let shared = &control.shared;
    let settings = shared.snapshot.load().model.admin.clone();
    let patience = body::BodyLimits {
        shared: Arc::clone(shared),
        body_timeout: body::BODY_TIMEOUT,
    };
    let router = api::router(control.clone()).layer(axum::middleware::from_fn_with_state(patience, body::read_whole));
    let port = match addr {
        Some(addr) => {
            let listener = listen(addr, takeover).await.with_context(|| {
                format!("listening on {addr} for the admin API: free it, or set admin.listen to another address")
            })?;
            let certificates = settings.tls.map(tls::AdminCertificates::new).transpose();
            Some((listener, certificates.context("the admin API's TLS")?))
        }
        None => None,
    };
    // Both sockets are open before either is served: a client that gets an answer over TCP (`/readyz`) finds the unix
    // socket.
    let unix = socket::listen(socket)?;
    if let Some((listener, certificates)) = port {
        let admin_auth = auth::AdminAuth::new(settings.token_file, Arc::clone(shared));
        // Authorization comes before the body: a client that may not make changes is refused before it has sent one.
        let router = router
            .clone()
            .layer(axum::middleware::from_fn_with_state(
                Arc::clone(&admin_auth),
                auth::require_auth,
            ))
            .layer(axum::middleware::from_fn_with_state(
                admin_auth,
                host_header::require_known,
            ));
        let limiter = connection_limiter(settings.max_connections, shared, |counts| &counts.tcp);
        let server = serve::Server::new(router, limiter, shared);
        tasks.push(tokio::spawn(server.tcp(listener, certificates)));
    }
    let router = router.layer(axum::middleware::from_fn(mutate::audit));
    let limiter = connection_limiter(MAX_ADMIN_SOCKET_CONNECTIONS, shared, |counts| &counts.unix);
    let server = serve::Server::new(router, limiter, shared);
    tasks.push(tokio::spawn(server.unix(unix)));
    tasks.push(tokio::spawn(live::sample(Arc::clone(shared))));
    Ok(AdminServers {
        tasks,
        socket: socket.to_owned(),
    })
}

async fn listen(addr: SocketAddr, retry: bool) -> std::io::Result<TcpListener> {
    let began = std::time::Instant::now();
    loop {
        match TcpListener::bind(addr).await {
            Err(error)
                if retry && error.kind() == std::io::ErrorKind::AddrInUse && began.elapsed() < HAND_OVER_TIMEOUT =>
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Makes the limiter of one socket, whose connections `gauge` counts.
fn connection_limiter(
    max: u32,
    shared: &Arc<Shared>,
    gauge: fn(&AdminStats) -> &Gauge,
) -> connection_limit::ConnectionLimiter {
    let shared = Arc::clone(shared);
    connection_limit::ConnectionLimiter::new(max, move |comes| {
        let gauge = gauge(&shared.admin);
        if comes { gauge.enter() } else { gauge.leave() }
    })
}

impl AdminServers {
    /// Gives the addresses to the successor with this process id, which replaces the unix socket's file itself. Waits,
    /// for a limited time, until the successor answers there or has ended: programs that follow this process move to
    /// it, and must not conclude that the balancer is dead.
    pub async fn retire(&mut self, successor: u32) {
        for task in self.tasks.drain(..) {
            task.abort();
            let _ = task.await;
        }
        let socket = std::mem::take(&mut self.socket);
        let began = std::time::Instant::now();
        let is_there = || kill(Pid::from_raw(successor.cast_signed()), None) != Err(Errno::ESRCH);
        while UnixStream::connect(&socket).await.is_err() && is_there() && began.elapsed() < SUCCESSOR_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Closes the API.
    pub fn close(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
        }
        if !self.socket.as_os_str().is_empty() {
            socket::remove(&self.socket);
            socket::remove(&crate::control::takeover::path(&self.socket));
        }
    }
}
