//! A service manager that signalbox runs under, as systemd: it hears of states, and keeps descriptors over a restart.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::{Lab, Signalbox};

/// Name of the unit that signalbox is.
const UNIT: &str = "signalbox.service";

/// Descriptors of an ended process are passed to the next one from this number on, and moved from there to 3, 4, ...
const FIRST_PASSED: RawFd = 200;

pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    path: PathBuf,
    /// Directory of a `systemctl`.
    programs: PathBuf,
    heard: Vec<String>,
    kept: Vec<(String, OwnedFd)>,
}

impl ServiceManager {
    pub(crate) fn new(lab: &Lab) -> Self {
        let path = lab.dir().join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let programs = lab.dir().join("programs");
        std::fs::create_dir_all(&programs).unwrap();
        let manager = Self {
            socket,
            path,
            programs,
            heard: Vec::new(),
            kept: Vec::new(),
        };
        manager.begin_job("start");
        manager
    }

    /// Has `systemctl list-jobs` show a job of the unit.
    pub(crate) fn begin_job(&self, kind: &str) {
        let program = self.programs.join("systemctl");
        let script = format!(
            "#!/bin/sh\n[ \"$*\" = 'list-jobs --no-legend --no-pager {UNIT}' ] && echo ' 77 {UNIT} {kind} running'\n"
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Has `systemctl` fail.
    pub(crate) fn break_systemctl(&self) {
        std::fs::write(self.programs.join("systemctl"), "#!/bin/sh\necho no bus >&2\nexit 1\n").unwrap();
    }

    /// Messages so far, line by line.
    pub(crate) fn heard(&mut self) -> &[String] {
        while self.receive() {}
        &self.heard
    }

    /// Names of the descriptors that are kept.
    pub(crate) fn kept(&mut self) -> Vec<&str> {
        while self.receive() {}
        let mut names: Vec<_> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// Receives a message, if there is one.
    fn receive(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let mut space = nix::cmsg_space!([RawFd; 253]);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let Ok(message) = recvmsg::<()>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags) else {
            return false;
        };
        let mut fds = Vec::new();
        for control in message.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(got) = control {
                // SAFETY: the kernel has just made these descriptors for us alone.
                fds.extend(got.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let length = message.bytes;
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        let name = lines.iter().find_map(|line| line.strip_prefix("FDNAME="));
        match name {
            Some(name) if lines.iter().any(|line| line == "FDSTORE=1") => {
                self.kept.extend(fds.into_iter().map(|fd| (name.to_owned(), fd)));
            }
            Some(name) if lines.iter().any(|line| line == "FDSTOREREMOVE=1") => {
                self.kept.retain(|(kept, _)| kept != name);
            }
            _ => {}
        }
        self.heard.extend(lines);
        true
    }

    /// Starts signalbox with the variables of a service, and with what is kept. `start` gets the words that the command
    /// is to begin with.
    pub(crate) fn start(&mut self, start: impl FnOnce(&[&str]) -> Signalbox) -> Signalbox {
        while self.receive() {}
        let passed: Vec<OwnedFd> = self.kept.iter().map(|(_, fd)| copy_from(fd, FIRST_PASSED)).collect();
        let moves = passed.iter().enumerate().map(|(index, fd)| {
            let (from, to) = (fd.as_raw_fd(), index + 3);
            format!("exec {to}<&{from} {from}<&-; ")
        });
        let names: Vec<_> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        let listen = if names.is_empty() {
            String::new()
        } else {
            format!(
                "LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={} ",
                names.len(),
                names.join(":")
            )
        };
        // The shell's pid becomes that of signalbox.
        let script = format!(
            "{}exec env {listen}NOTIFY_SOCKET={} WATCHDOG_USEC=600000 WATCHDOG_PID=$$ SIGNALBOX_UNIT={UNIT} \
             PATH={}:$PATH \"$@\"",
            moves.collect::<String>(),
            self.path.display(),
            self.programs.display(),
        );
        let sb = start(&["bash", "-c", &script, "bash"]);
        drop(passed);
        sb
    }
}

/// Duplicates a descriptor to a number from `lowest` on, which programs that are started get.
fn copy_from(fd: &OwnedFd, lowest: RawFd) -> OwnedFd {
    let number = fcntl(fd, FcntlArg::F_DUPFD(lowest)).unwrap();
    // SAFETY: the kernel has just made the descriptor for us alone.
    let copy = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&copy, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    copy
}
