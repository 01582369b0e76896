//! A service manager that signalbox runs under, as systemd: it hears of states, and keeps descriptors over a restart.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::{Lab, Signalbox};

/// Name of the unit that signalbox is.
const UNIT: &str = "signalbox.service";

/// Descriptors of an ended process are passed to the next one from this number on, and moved from there to 3, 4, ...
const FIRST_PASSED: RawFd = 200;

pub(crate) struct ServiceManager {
    path: PathBuf,
    /// Directory of a `systemctl`.
    programs: PathBuf,
    state: Arc<Mutex<State>>,
}

struct State {
    heard: Vec<String>,
    kept: Vec<OwnedFd>,
    /// Most descriptors that are kept (`FileDescriptorStoreMax=`).
    limit: usize,
}

impl ServiceManager {
    pub(crate) fn new(lab: &Lab) -> Self {
        let path = lab.dir().join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        let programs = lab.dir().join("programs");
        std::fs::create_dir_all(&programs).unwrap();
        let state = State {
            heard: Vec::new(),
            kept: Vec::new(),
            limit: 4096,
        };
        let manager = Self {
            path,
            programs,
            state: Arc::new(Mutex::new(state)),
        };
        let (state, count) = (Arc::clone(&manager.state), manager.programs.join("count"));
        std::fs::write(&count, "0").unwrap();
        std::thread::spawn(move || {
            while let Ok((lines, fds)) = receive(&socket) {
                let mut state = state.lock().unwrap();
                let has = |wanted: &str| lines.iter().any(|line| line == wanted);
                if has("FDSTORE=1") && has("FDNAME=signalbox") {
                    let room = state.limit - state.kept.len();
                    state.kept.extend(fds.into_iter().take(room));
                } else if has("FDSTOREREMOVE=1") && has("FDNAME=signalbox") {
                    state.kept.clear();
                }
                std::fs::write(&count, state.kept.len().to_string()).unwrap();
                state.heard.extend(lines);
            }
        });
        manager.begin_job("start");
        manager
    }

    /// Has `systemctl list-jobs` show a job of the unit.
    pub(crate) fn begin_job(&self, kind: &str) {
        let program = self.programs.join("systemctl");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n'list-jobs --no-legend --no-pager {UNIT}') echo ' 77 {UNIT} {kind} running' ;;\n\
             'show --property=NFileDescriptorStore --value {UNIT}') cat {}/count ;;\n*) exit 1 ;;\nesac\n",
            self.programs.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Has `systemctl` fail.
    pub(crate) fn break_systemctl(&self) {
        std::fs::write(self.programs.join("systemctl"), "#!/bin/sh\necho no bus >&2\nexit 1\n").unwrap();
    }

    /// Keeps no more descriptors than these.
    pub(crate) fn limit(&self, most: usize) {
        self.state.lock().unwrap().limit = most;
    }

    /// Messages so far, line by line.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.state.lock().unwrap().heard.clone()
    }

    /// Number of descriptors that are kept.
    pub(crate) fn kept(&self) -> usize {
        self.state.lock().unwrap().kept.len()
    }

    /// Starts signalbox with the variables of a service, and with the kept descriptors. `start` gets the words that the
    /// command must begin with.
    pub(crate) fn start(&self, start: impl FnOnce(&[&str]) -> Signalbox) -> Signalbox {
        let passed: Vec<OwnedFd> = {
            let state = self.state.lock().unwrap();
            state.kept.iter().map(|fd| copy_from(fd, FIRST_PASSED)).collect()
        };
        let moves = passed.iter().enumerate().map(|(index, fd)| {
            let (from, to) = (fd.as_raw_fd(), index + 3);
            format!("exec {to}<&{from} {from}<&-; ")
        });
        let listen = if passed.is_empty() {
            String::new()
        } else {
            let names = vec!["signalbox"; passed.len()].join(":");
            format!("LISTEN_PID=$$ LISTEN_FDS={} LISTEN_FDNAMES={names} ", passed.len())
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

/// Receives a message: its lines, and its descriptors.
fn receive(socket: &UnixDatagram) -> nix::Result<(Vec<String>, Vec<OwnedFd>)> {
    let mut buffer = [0; 4096];
    let mut space = nix::cmsg_space!([RawFd; 253]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(got) = control {
            // SAFETY: the kernel has just made these descriptors for us alone.
            fds.extend(got.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let length = message.bytes;
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    Ok((text.lines().map(str::to_owned).collect(), fds))
}

/// Duplicates a descriptor to a number from `lowest` on, which programs that are started get.
fn copy_from(fd: &OwnedFd, lowest: RawFd) -> OwnedFd {
    let number = fcntl(fd, FcntlArg::F_DUPFD(lowest)).unwrap();
    // SAFETY: the kernel has just made the descriptor for us alone.
    let copy = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&copy, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    copy
}
