//! A tun device: an interface without Ethernet, of which a test is the network.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

/// `TUNSETIFF` (include/uapi/linux/if_tun.h).
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const IFF_TUN: i16 = 1;
const IFF_NO_PI: i16 = 0x1000;

/// The part of `struct ifreq` that TUNSETIFF reads.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

pub(crate) struct Tun(File);

impl Tun {
    /// Makes a device in this thread's network namespace. It is gone when this is dropped.
    pub(crate) fn open(name: &str) -> Self {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open("/dev/net/tun").unwrap();
        let mut request = Request {
            name: [0; 16],
            flags: IFF_TUN | IFF_NO_PI,
            rest: [0; 22],
        };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: a whole request, which outlives the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        Self(file)
    }

    /// Has packets arrive by the device.
    pub(crate) fn send(&mut self, packets: &[Vec<u8>]) {
        for packet in packets {
            self.0.write_all(packet).unwrap();
        }
    }

    /// Waits for a packet that leaves by the device.
    pub(crate) fn expect(&mut self, patience: Duration, is_it: impl Fn(&[u8]) -> bool) -> bool {
        let until = Instant::now() + patience;
        let mut room = [0; 2048];
        while Instant::now() < until {
            match self.0.read(&mut room) {
                Ok(length) if is_it(&room[..length]) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{error}"),
            }
        }
        false
    }
}
