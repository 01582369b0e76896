//! A pseudo-terminal with a program in it, whose screen is read as an emulator shows it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signalbox_lab::eventually;

use super::SOON;

const LINES: u16 = 24;
const COLUMNS: u16 = 80;

/// A program in a terminal of 80 x 24.
pub(crate) struct TerminalSession {
    child: Child,
    keyboard: File,
    /// The terminal as the program has it: its settings outlive the program.
    side: OwnedFd,
    before: libc::termios,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl TerminalSession {
    /// Starts a program with the terminal as its input and outputs.
    pub(crate) fn start(mut command: Command) -> Self {
        let (own, side) = open();
        let before = settings(&side);
        let copy = || Stdio::from(side.try_clone().unwrap());
        command.stdin(copy()).stdout(copy()).stderr(copy());
        let child = command.env("TERM", "xterm-256color").spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(LINES, COLUMNS, 0)));
        let (mut output, shown) = (File::from(own.try_clone().unwrap()), Arc::clone(&screen));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..n]);
            }
        });
        Self {
            child,
            keyboard: File::from(own),
            side,
            before,
            screen,
        }
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The text on the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen has a text.
    pub(crate) fn expect(&self, text: &str) {
        self.expect_that(text, |shown| shown.contains(text));
    }

    /// Waits until the text on the screen satisfies a condition.
    pub(crate) fn expect_that(&self, what: &str, condition: impl Fn(&str) -> bool) {
        let came = eventually(SOON, || condition(&self.text()));
        assert!(came, "the screen does not show: {what}\n{}", self.text());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Waits for the program's end; returns its exit code. The terminal must be as it was before.
    pub(crate) fn end(mut self) -> Option<i32> {
        let mut status = None;
        eventually(SOON, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let code = status
            .unwrap_or_else(|| panic!("it still runs:\n{}", self.text()))
            .code();
        let is_restored = || {
            let parser = self.screen.lock().unwrap();
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        };
        assert!(eventually(SOON, is_restored), "the screen is not the one before");
        let (before, after) = (&self.before, settings(&self.side));
        let flags = |of: &libc::termios| (of.c_iflag, of.c_oflag, of.c_cflag, of.c_lflag);
        assert_eq!(flags(&after), flags(before), "the terminal's settings are others");
        code
    }
}

impl Drop for TerminalSession {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens a pseudo-terminal: our side, and that of a program.
fn open() -> (OwnedFd, OwnedFd) {
    let (mut own, mut side) = (-1, -1);
    let size = libc::winsize {
        ws_row: LINES,
        ws_col: COLUMNS,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: both numbers and the size outlive the call; neither a name nor settings are asked for.
    let outcome = unsafe { libc::openpty(&mut own, &mut side, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(outcome, 0, "openpty: {}", std::io::Error::last_os_error());
    // SAFETY: the call has just opened both, and they have no other owner.
    unsafe { (OwnedFd::from_raw_fd(own), OwnedFd::from_raw_fd(side)) }
}

fn settings(side: &OwnedFd) -> libc::termios {
    let mut settings = std::mem::MaybeUninit::uninit();
    // SAFETY: the descriptor is open, and the call fills the settings when it succeeds.
    unsafe {
        assert_eq!(libc::tcgetattr(side.as_raw_fd(), settings.as_mut_ptr()), 0);
        settings.assume_init()
    }
}
