//! Joins two sockets in the kernel: tier `sockmap`.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use signalbox_common::credit::SockmapLeg;

use crate::map::{Credits, MapFd};
use crate::version::Version;
use signalbox_sys as sys;

/// Maps of tier `sockmap`, shared by all workers.
pub struct SockmapPair {
    peers: MapFd,
    verdicts: MapFd,
    legs: MapFd,
    pub credits: Credits,
}

/// Result of joining two sockets.
#[derive(Debug)]
pub enum JoinOutcome {
    /// The kernel carries both legs.
    Both,
    /// The first leg was taken and the second refused. The first cannot be taken back without losing bytes:
    /// it stays, with no credit for good.
    FirstOnly(io::Error),
}

impl SockmapPair {
    pub fn new(peers: MapFd, verdicts: MapFd, legs: MapFd, credits: Credits) -> Self {
        Self {
            peers,
            verdicts,
            legs,
            credits,
        }
    }

    /// Joins two established sockets whose receive queues hold no half-read segment. `legs` are the sockets with their
    /// cookies and credits; each credit starts with `limit` bytes.
    ///
    /// The order matters: targets first, so that every verdict finds its target; the program last; then a kick for
    /// bytes that arrived before, which the program has not seen.
    pub fn join<S: AsRawFd>(&self, legs: [(&S, u64, u32); 2], limit: u64) -> io::Result<JoinOutcome> {
        let [(a, cookie_a, credit_a), (b, cookie_b, credit_b)] = legs;
        for (socket, _, credit) in legs {
            let next = sys::next_unread_sequence(socket.as_raw_fd())?;
            self.credits.reset(credit, limit, next);
        }
        let prepared = self
            .legs
            .update(
                &cookie_a,
                &SockmapLeg {
                    credit: credit_a,
                    _pad: 0,
                },
            )
            .and_then(|()| {
                self.legs.update(
                    &cookie_b,
                    &SockmapLeg {
                        credit: credit_b,
                        _pad: 0,
                    },
                )
            })
            .and_then(|()| self.put(&self.peers, cookie_a, b.as_raw_fd()))
            .and_then(|()| self.put(&self.peers, cookie_b, a.as_raw_fd()))
            .and_then(|()| self.put(&self.verdicts, cookie_a, a.as_raw_fd()));
        if let Err(error) = prepared {
            self.remove(cookie_a, cookie_b);
            return Err(error);
        }
        if let Err(error) = self.put(&self.verdicts, cookie_b, b.as_raw_fd()) {
            self.credits.set_limit(credit_a, 0);
            sys::recheck_receive_queue(a.as_raw_fd())?;
            return Ok(JoinOutcome::FirstOnly(error));
        }
        sys::recheck_receive_queue(a.as_raw_fd())?;
        sys::recheck_receive_queue(b.as_raw_fd())?;
        Ok(JoinOutcome::Both)
    }

    fn put(&self, map: &MapFd, cookie: u64, fd: RawFd) -> io::Result<()> {
        map.update(&cookie, &(fd as u32))
    }

    /// Removes the map entries of a closed flow. The kernel drops closed sockets from the socket maps.
    pub fn remove(&self, cookie_a: u64, cookie_b: u64) {
        for cookie in [cookie_a, cookie_b] {
            for map in [&self.peers, &self.legs] {
                if let Err(error) = map.delete(&cookie) {
                    tracing::debug!(%error, "A map entry of a closed flow could not be removed.");
                }
            }
        }
    }
}

/// Returns whether this kernel's sockmap is known to be free of the defects that lose or duplicate data.
///
/// Fixes cannot be probed for, so this goes by version: see the kernel's stable change logs for `bpf, sockmap`
/// ("Fix incorrect copied_seq calculation", "Fix data lost during EAGAIN retries" and later).
#[must_use]
pub fn kernel_is_sound(version: &Version) -> bool {
    match version.numbers() {
        (6, 1, patch) => patch >= 191,
        (6, 12, patch) => patch >= 104,
        (6, minor, _) => minor >= 18,
        (major, ..) => major > 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_the_fixes_are_known() {
        for (release, sound) in [
            ("6.18.44-fc", true),
            ("6.12.104-1-amd64", true),
            ("6.12.90", false),
            ("6.1.190", false),
            ("6.1.191", true),
            ("5.14.0-503.el9", false),
            ("7.0.1", true),
            ("6.6.80", false),
        ] {
            assert_eq!(kernel_is_sound(&Version::of(release, "")), sound, "{release}");
        }
    }
}
