//! A restart of the unit: systemd keeps the listening sockets meanwhile (`FDSTORE=1` of `sd_notify(3)`), so that clients
//! wait in their queues instead of being refused.
//!
//! Sockets are left with systemd only where another process is to come. Behind a stop or a kill an address refuses
//! connections, so that whoever watches it notices.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use sd_notify::NotifyState;
use signalbox_core::model::Bind;
use tokio::process::Command;

use crate::control::listener_set::Offer;
use crate::datapath::worker::ListenSocketKey;
use crate::sys;

/// Variable in which the unit says its own name (`%n`).
const UNIT: &str = "SIGNALBOX_UNIT";

/// Beginning of the names of all descriptors that systemd keeps for us.
const NAMES: &str = "signalbox-";
/// Name of sockets that connections are steered to.
const STEERED: &str = "signalbox-steered";
/// Name of the link of the program that steers.
const LINK: &str = "signalbox-link";
/// Beginning of the name of sockets that are bound to an address, which follows.
const BOUND: &str = "signalbox-at-";

/// Time that systemd has to say what it does with the unit.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Returns whether systemd stops this unit in order to start it again.
pub(super) async fn is_under_way() -> bool {
    let Ok(unit) = std::env::var(UNIT) else {
        return false;
    };
    let mut systemctl = Command::new("systemctl");
    systemctl.args(["list-jobs", "--no-legend", "--no-pager", &unit]);
    systemctl.kill_on_drop(true);
    let why = match tokio::time::timeout(ANSWER_TIMEOUT, systemctl.output()).await {
        Ok(Ok(answer)) if answer.status.success() => {
            return names_restart(&String::from_utf8_lossy(&answer.stdout), &unit);
        }
        Ok(Ok(answer)) => String::from_utf8_lossy(&answer.stderr).trim().to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer in {} s", ANSWER_TIMEOUT.as_secs()),
    };
    tracing::warn!(
        why,
        "`systemctl list-jobs` does not say whether this is a restart: new connections are refused from now on."
    );
    false
}

/// Whether a table of jobs (number, unit, kind, state) has a restart of the unit.
fn names_restart(jobs: &str, unit: &str) -> bool {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    jobs.lines()
        .map(words)
        .any(|job| job.get(1).is_some_and(|name| name == unit) && job.get(2).is_some_and(|kind| kind == "restart"))
}

/// Leaves the sockets with systemd, for the next process of the unit.
pub(super) fn keep(offer: &Offer) -> std::io::Result<()> {
    let mut by_name: HashMap<String, Vec<BorrowedFd<'_>>> = HashMap::new();
    for (key, listeners) in &offer.sockets {
        let fds = listeners.iter().map(TcpListener::as_fd);
        by_name.entry(name_of(key)).or_default().extend(fds);
    }
    let link = offer.link.iter().map(OwnedFd::as_fd);
    by_name.entry(LINK.to_owned()).or_default().extend(link);
    for (name, fds) in &by_name {
        for some in fds.chunks(sys::MAX_DESCRIPTORS) {
            sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(name)], some)?;
        }
    }
    Ok(())
}

/// Takes the sockets that systemd has kept since the last process of the unit; `None` where there are none. From now on
/// they end with this process.
#[must_use]
pub fn kept_sockets() -> Option<Offer> {
    let fds = match sys::take_descriptors(NAMES) {
        Ok(fds) => fds,
        Err(error) => {
            tracing::warn!(%error, "The descriptors that the service manager passes cannot be taken.");
            return None;
        }
    };
    for (name, _) in &fds {
        let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
    }
    let mut link = None;
    let (mut steered, mut bound) = (Vec::new(), HashMap::<Bind, Vec<TcpListener>>::new());
    for (name, fd) in fds {
        if name == LINK {
            link = Some(fd);
        } else if name == STEERED {
            steered.push(TcpListener::from(fd));
        } else if let Some(bind) = bind_of(&name) {
            bound.entry(bind).or_default().push(TcpListener::from(fd));
        }
    }
    if steered.is_empty() && bound.is_empty() {
        return None;
    }
    // As they were opened: sockets of IPv4 first.
    steered.sort_by_key(|socket| socket.local_addr().is_ok_and(|addr| addr.is_ipv6()));
    let numbered = steered.into_iter().enumerate();
    let steered = numbered.map(|(index, socket)| (ListenSocketKey::Steered(index), vec![socket]));
    let binds: Vec<Bind> = bound.keys().copied().collect();
    let bound = bound.into_iter().map(|(bind, all)| (ListenSocketKey::Bound(bind), all));
    Some(Offer {
        steered: binds.is_empty(),
        sockets: steered.chain(bound).collect(),
        binds,
        link,
    })
}

/// Name that sockets are kept by: systemd takes no colon in it.
fn name_of(key: &ListenSocketKey) -> String {
    match key {
        ListenSocketKey::Steered(_) => STEERED.to_owned(),
        ListenSocketKey::Bound(bind) => {
            let address = bind.prefix.to_string().replace(':', "_");
            format!("{BOUND}{address}-{}", bind.port)
        }
    }
}

/// Address that sockets of this name are bound to.
fn bind_of(name: &str) -> Option<Bind> {
    let (address, port) = name.strip_prefix(BOUND)?.rsplit_once('-')?;
    Some(Bind {
        prefix: address.replace('_', ":").parse().ok()?,
        port: port.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_addresses() {
        for (prefix, port, name) in [
            ("10.1.0.1/32", 80, "signalbox-at-10.1.0.1/32-80"),
            ("0.0.0.0/0", 443, "signalbox-at-0.0.0.0/0-443"),
            ("2001:db8::1/128", 8443, "signalbox-at-2001_db8__1/128-8443"),
        ] {
            let bind = Bind {
                prefix: prefix.parse().unwrap(),
                port,
            };
            assert_eq!(name_of(&ListenSocketKey::Bound(bind)), name);
            assert_eq!(bind_of(name), Some(bind));
        }
        for other in ["signalbox-steered", "signalbox-link", "signalbox-at-10.1.0.1/32", "x"] {
            assert_eq!(bind_of(other), None, "{other}");
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
