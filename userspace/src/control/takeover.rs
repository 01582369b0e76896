//! Hands the listening sockets over from a running signalbox to its successor.
//!
//! Uses a unix socket beside the admin socket. The old process sends its listening addresses and sockets (a line of
//! JSON, then the descriptors by `SCM_RIGHTS`). The new one starts to serve and confirms that. The old one stops
//! accepting and drains. The sockets stay the same, so no connection is refused, not even a queued one.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, getsockopt, sendmsg};
use serde::{Deserialize, Serialize};
use signalbox_core::model::Bind;
use tokio::sync::{mpsc, oneshot};

use crate::control::event::StoreEvent;
use crate::control::listener_set::Offer;
use crate::datapath::worker::ListenSocketKey;
use crate::reconcile::flow_gc::FlowGc;
use crate::sys::{self, MAX_DESCRIPTORS};

/// Description of the sockets, sent before the descriptors.
#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    pid: u32,
    steered: bool,
    /// Bound addresses: prefix and port.
    binds: Vec<(ipnet::IpNet, u16)>,
    /// For each socket its bind, or `None` if it is steered, and its number of descriptors.
    sockets: Vec<(Option<(ipnet::IpNet, u16)>, usize)>,
}

const VERSION: u32 = 1;

/// Time that each side waits for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that the old process waits for the new one to serve, while it continues to serve itself. Verifying the programs
/// takes seconds on a busy CPU, and minutes on an emulated one.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the path of the takeover socket that belongs to an admin socket.
#[must_use]
pub fn path(admin_socket: &Path) -> PathBuf {
    let mut name = admin_socket.as_os_str().to_owned();
    name.push(".takeover");
    name.into()
}

/// The running signalbox, as its successor sees it.
pub struct Predecessor {
    stream: UnixStream,
    pub pid: u32,
}

/// Requests the sockets of the running signalbox; `None` if none is running.
pub fn request(admin_socket: &Path) -> io::Result<Option<(Predecessor, Offer)>> {
    let mut stream = match UnixStream::connect(path(admin_socket)) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(b"takeover\n")?;
    let manifest: Manifest = serde_json::from_slice(&read_line(&mut stream)?).map_err(io::Error::other)?;
    if manifest.version != VERSION {
        return Err(io::Error::other(format!(
            "the running signalbox speaks hand-over version {}, not {VERSION}",
            manifest.version
        )));
    }
    let wanted: usize = manifest.sockets.iter().map(|(_, count)| count).sum();
    let mut fds = Vec::new();
    while fds.len() < wanted {
        let got = sys::receive_descriptors(&stream)?;
        if got.is_empty() {
            return Err(io::Error::other(
                "the running signalbox ended before it had sent its sockets",
            ));
        }
        fds.extend(got);
    }
    let mut fds = fds.into_iter().map(TcpListener::from);
    let mut steered = 0;
    let sockets = manifest
        .sockets
        .iter()
        .map(|(bind, count)| {
            let socket = match bind {
                Some((prefix, port)) => ListenSocketKey::Bound(Bind {
                    prefix: *prefix,
                    port: *port,
                }),
                None => {
                    steered += 1;
                    ListenSocketKey::Steered(steered - 1)
                }
            };
            (socket, fds.by_ref().take(*count).collect())
        })
        .collect();
    let binds = manifest
        .binds
        .into_iter()
        .map(|(prefix, port)| Bind { prefix, port })
        .collect();
    Ok(Some((
        Predecessor {
            stream,
            pid: manifest.pid,
        },
        Offer {
            steered: manifest.steered,
            binds,
            sockets,
            link: None,
        },
    )))
}

impl Predecessor {
    /// Tells the predecessor that this process serves. Returns when the predecessor has stopped accepting.
    pub fn confirm(mut self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(SUCCESSOR_TIMEOUT))?;
        self.stream.write_all(b"serving\n")?;
        read_line(&mut self.stream).map(drop)
    }
}

fn read_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut byte = [0];
    // Byte by byte: descriptors follow the line, and a larger read could consume their message.
    while stream.read(&mut byte)? == 1 {
        if byte[0] == b'\n' {
            return Ok(text);
        }
        text.push(byte[0]);
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn send_descriptors(stream: &UnixStream, fds: &[RawFd]) -> io::Result<()> {
    for some in fds.chunks(MAX_DESCRIPTORS) {
        sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(b"+")],
            &[ControlMessage::ScmRights(some)],
            MsgFlags::empty(),
            None,
        )?;
    }
    Ok(())
}

/// Waits for a successor in a separate thread. Sends its pid to `relieved` after it has taken over.
pub fn serve(
    admin_socket: &Path,
    events: mpsc::UnboundedSender<StoreEvent>,
    relieved: mpsc::UnboundedSender<u32>,
    flow_gc: Option<Arc<FlowGc>>,
) -> io::Result<()> {
    let path = path(admin_socket);
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    std::thread::Builder::new().name("takeover".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            match hand_over(stream, &events, flow_gc.as_deref()) {
                Ok(pid) => {
                    let _ = relieved.send(pid);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "The takeover failed: this process continues.");
                    let _ = events.send(StoreEvent::HandOverFailed);
                }
            }
        }
    })?;
    Ok(())
}

fn hand_over(
    mut stream: UnixStream,
    events: &mpsc::UnboundedSender<StoreEvent>,
    flow_gc: Option<&FlowGc>,
) -> io::Result<u32> {
    let pid = getsockopt(&stream, PeerCredentials)?.pid().cast_unsigned();
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    if read_line(&mut stream)? != b"takeover" {
        return Err(io::Error::other("not a signalbox"));
    }
    let ended = || io::Error::other("this process is ending");
    let (reply, offer) = oneshot::channel();
    events.send(StoreEvent::HandOver(reply)).map_err(|_| ended())?;
    let offer = offer.blocking_recv().map_err(|_| ended())?;
    let mut sockets = offer.sockets;
    sockets.sort_by_key(|(socket, _)| match socket {
        ListenSocketKey::Steered(index) => *index,
        ListenSocketKey::Bound(_) => usize::MAX,
    });
    let pair = |bind: &Bind| (bind.prefix, bind.port);
    let manifest = Manifest {
        version: VERSION,
        pid: std::process::id(),
        steered: offer.steered,
        binds: offer.binds.iter().map(pair).collect(),
        sockets: sockets
            .iter()
            .map(|(socket, listeners)| match socket {
                ListenSocketKey::Steered(_) => (None, listeners.len()),
                ListenSocketKey::Bound(bind) => (Some(pair(bind)), listeners.len()),
            })
            .collect(),
    };
    let mut text = serde_json::to_vec(&manifest).map_err(io::Error::other)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let fds: Vec<RawFd> = sockets
        .iter()
        .flat_map(|(_, listeners)| listeners)
        .map(std::os::fd::AsRawFd::as_raw_fd)
        .collect();
    send_descriptors(&stream, &fds)?;
    tracing::info!("Listening sockets offered to a successor.");
    stream.set_read_timeout(Some(SUCCESSOR_TIMEOUT))?;
    if read_line(&mut stream)? != b"serving" {
        return Err(io::Error::other("the successor did not start to serve"));
    }
    let (done, stopped) = oneshot::channel();
    events.send(StoreEvent::HandedOver(done)).map_err(|_| ended())?;
    stopped.blocking_recv().map_err(|_| ended())?;
    if let Some(flow_gc) = flow_gc {
        flow_gc.retire();
    }
    // This process no longer listens, even if the successor does not get the line: this cannot be undone.
    let _ = stream.write_all(b"stopped\n");
    Ok(pid)
}
