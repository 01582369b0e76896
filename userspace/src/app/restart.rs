//! A restart of the unit. Until the next process starts, systemd keeps the listening sockets (`FDSTORE=1` of
//! `sd_notify(3)`), so that clients wait in their queues instead of being refused.
//!
//! Sockets are left with systemd only if another process will follow. After a stop or a kill an address refuses
//! connections, so that monitoring notices it.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use sd_notify::NotifyState;
use signalbox_core::model::{Bind, Model};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::control::Control;
use crate::control::event::StoreEvent;
use crate::control::listener_set::Offer;
use crate::datapath::worker::ListenSocketKey;
use crate::sys;

/// Variable with the unit's own name (`%n`).
const UNIT: &str = "SIGNALBOX_UNIT";
/// Variable that a service manager sets.
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";

/// Name of all descriptors that systemd keeps for us. A short one, because systemd passes all names in one variable.
const NAME: &str = "signalbox";

/// Time limit for systemd's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between two checks of the sockets that systemd keeps.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Leaves the sockets with systemd if it ends this process to start another one. Returns whether it keeps them.
pub(super) async fn leave_sockets(control: &Control) -> bool {
    let (Ok(unit), true) = (std::env::var(UNIT), std::env::var_os(NOTIFY_SOCKET).is_some()) else {
        return false;
    };
    match is_under_way(&unit).await {
        Ok(true) => {}
        Ok(false) => return false,
        Err(why) => {
            tracing::warn!(
                why,
                "`systemctl list-jobs` does not say whether this is a restart: new connections are refused from now on."
            );
            return false;
        }
    }
    match keep(control, &unit).await {
        Ok(()) => {
            tracing::info!("systemd keeps the listening sockets for the restart: new connections wait.");
            true
        }
        Err(why) => {
            forget();
            tracing::warn!(
                why,
                "systemd does not keep the listening sockets: new connections are refused until the restart is over."
            );
            false
        }
    }
}

/// Returns whether systemd stops this unit to start it again.
async fn is_under_way(unit: &str) -> Result<bool, String> {
    let jobs = ask(&["list-jobs", "--no-legend", "--no-pager", unit]).await?;
    Ok(names_restart(&jobs, unit))
}

/// Runs `systemctl` and returns its output.
async fn ask(words: &[&str]) -> Result<String, String> {
    let mut systemctl = Command::new("systemctl");
    systemctl.args(words).kill_on_drop(true);
    match tokio::time::timeout(ANSWER_TIMEOUT, systemctl.output()).await {
        Ok(Ok(answer)) if answer.status.success() => Ok(String::from_utf8_lossy(&answer.stdout).into_owned()),
        Ok(Ok(answer)) => Err(String::from_utf8_lossy(&answer.stderr).trim().to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {} s", ANSWER_TIMEOUT.as_secs())),
    }
}

/// Whether a table of jobs (number, unit, kind, state) contains a restart of the unit.
fn names_restart(jobs: &str, unit: &str) -> bool {
    let mut jobs = jobs.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    jobs.any(|job| job.get(1..3) == Some(&[unit, "restart"]))
}

/// Gives systemd duplicates of the sockets, and waits until it has all of them.
async fn keep(control: &Control, unit: &str) -> Result<(), String> {
    let (reply, duplicates) = oneshot::channel();
    let _ = control.events.send(StoreEvent::DuplicateSockets(reply));
    let offer = duplicates.await.map_err(|_| "the store has ended".to_owned())?;
    let offer = offer.map_err(|error| error.to_string())?;
    let sockets = offer.sockets.iter().flat_map(|(_, all)| all).map(TcpListener::as_fd);
    let all: Vec<BorrowedFd<'_>> = sockets.chain(offer.link.iter().map(OwnedFd::as_fd)).collect();
    for some in all.chunks(sys::MAX_DESCRIPTORS) {
        sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(NAME)], some)
            .map_err(|error| error.to_string())?;
    }
    let begun = Instant::now();
    loop {
        let kept = ask(&["show", "--property=NFileDescriptorStore", "--value", unit]).await?;
        if kept.trim() == all.len().to_string() {
            return Ok(());
        }
        if begun.elapsed() > ANSWER_TIMEOUT {
            return Err(format!(
                "it has {} of {}: FileDescriptorStoreMax= of the unit says how many it may have",
                kept.trim(),
                all.len()
            ));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Makes systemd close the sockets that it keeps.
fn forget() {
    let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(NAME)]);
}

/// Takes the sockets that systemd has kept since the unit's last process; `None` if there are none. From now on they
/// end with this process.
#[must_use]
pub fn kept_sockets() -> Option<Offer> {
    let fds = match sys::take_descriptors(NAME) {
        Ok(fds) => fds,
        Err(error) => {
            tracing::warn!(%error, "The descriptors that the service manager passes cannot be taken.");
            return None;
        }
    };
    if fds.is_empty() {
        return None;
    }
    forget();
    let (sockets, others): (Vec<_>, Vec<_>) = fds.into_iter().partition(sys::is_listening);
    let link = others.into_iter().next();
    let sockets = sockets.into_iter().map(TcpListener::from);
    // Sockets that connections are steered to are not bound to the addresses that clients know.
    let steered = link.is_some();
    let mut by_key = HashMap::<ListenSocketKey, Vec<TcpListener>>::new();
    for (index, socket) in sockets.enumerate() {
        let key = if steered {
            ListenSocketKey::Steered(index)
        } else {
            ListenSocketKey::Bound(bind_of(&socket)?)
        };
        by_key.entry(key).or_default().push(socket);
    }
    Some(offer(by_key, link))
}

fn offer(sockets: HashMap<ListenSocketKey, Vec<TcpListener>>, link: Option<OwnedFd>) -> Offer {
    let bind = |key: &ListenSocketKey| match key {
        ListenSocketKey::Bound(bind) => Some(*bind),
        ListenSocketKey::Steered(_) => None,
    };
    Offer {
        steered: link.is_some(),
        binds: sockets.keys().filter_map(bind).collect(),
        sockets: sockets.into_iter().collect(),
        link,
    }
}

/// Returns the kept sockets that this process can use, by its steering and its configured addresses. The others are
/// closed, because one could block another address on the same port.
pub(super) fn usable(kept: Offer, model: &Model, steers: bool) -> Option<Offer> {
    if kept.steered != steers {
        return None;
    }
    let is_wanted = |key: &ListenSocketKey| match key {
        ListenSocketKey::Steered(_) => true,
        ListenSocketKey::Bound(bind) => model.listeners.iter().any(|listener| listener.listen.contains(bind)),
    };
    let sockets = kept.sockets.into_iter().filter(|(key, _)| is_wanted(key)).collect();
    Some(offer(sockets, kept.link))
}

/// Address that a socket is bound to. An unspecified one means all addresses of its family.
fn bind_of(socket: &TcpListener) -> Option<Bind> {
    let addr = socket.local_addr().ok()?;
    let host = IpNet::from(addr.ip());
    let prefix_len = if addr.ip().is_unspecified() {
        0
    } else {
        host.prefix_len()
    };
    Some(Bind {
        prefix: IpNet::new(addr.ip(), prefix_len).ok()?,
        port: addr.port(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets_are_those_of_a_configuration() {
        for (addr, prefix) in [
            ("127.0.0.1:0", "127.0.0.1/32"),
            ("0.0.0.0:0", "0.0.0.0/0"),
            ("[::1]:0", "::1/128"),
            ("[::]:0", "::/0"),
        ] {
            let Ok(socket) = TcpListener::bind(addr) else {
                println!("SKIP {addr}: no such address here");
                continue;
            };
            let expected = Bind {
                prefix: prefix.parse().unwrap(),
                port: socket.local_addr().unwrap().port(),
            };
            assert_eq!(bind_of(&socket), Some(expected));
        }
    }

    #[test]
    fn a_restart_is_told_from_other_jobs() {
        let unit = "signalbox.service";
        for (jobs, expected) in [
            ("", false),
            ("  77 signalbox.service restart running\n", true),
            ("77 signalbox.service stop running", false),
            (
                "77 signalbox-ha.service restart running\n78 signalbox.service stop running",
                false,
            ),
            (
                "76 network.target start waiting\n77 signalbox.service restart running",
                true,
            ),
        ] {
            assert_eq!(names_restart(jobs, unit), expected, "{jobs}");
        }
    }
}
