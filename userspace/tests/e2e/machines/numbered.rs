//! A stream whose blocks are numbered: cheap to make and to check where a processor is emulated.

use std::io::{Error, Read, Result, Write};
use std::net::TcpStream;

use crate::lab::Server;
use crate::lab::namespace::Ns;

const BLOCK: usize = 64 * 1024;

fn block(number: u64) -> Vec<u8> {
    let mut block = vec![number as u8 ^ 0x5a; BLOCK];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

/// Sends as many blocks as the client's first eight bytes ask for.
pub(super) fn serve(ns: &Ns, at: &str) -> Server {
    Server::start(ns, at, |stream| {
        let mut stream: &TcpStream = &stream;
        let mut wanted = [0; 8];
        if stream.read_exact(&mut wanted).is_err() {
            return;
        }
        for number in 0..u64::from_le_bytes(wanted) {
            if stream.write_all(&block(number)).is_err() {
                return;
            }
        }
    })
}

/// A download that its reader may interrupt.
pub(super) struct Download {
    stream: TcpStream,
    next: u64,
    count: u64,
}

impl Download {
    /// Asks for `bytes` bytes, and reads none yet.
    pub(super) fn begin(stream: TcpStream, bytes: u64) -> Result<Self> {
        let count = bytes.div_ceil(BLOCK as u64);
        (&stream).write_all(&count.to_le_bytes())?;
        Ok(Self { stream, next: 0, count })
    }

    /// Reads blocks up to this part of all, and checks each.
    pub(super) fn read_to(&mut self, part: f64) -> Result<()> {
        let mut bytes = vec![0; BLOCK];
        while (self.next as f64) < self.count as f64 * part {
            self.stream.read_exact(&mut bytes)?;
            if bytes != block(self.next) {
                return Err(Error::other(format!("block {} is not what was sent", self.next)));
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Reads the rest, and the end after it.
    pub(super) fn finish(mut self) -> Result<()> {
        self.read_to(1.0)?;
        let more = self.stream.read(&mut [0; 1])?;
        if more != 0 {
            return Err(Error::other("there is more than was asked for"));
        }
        Ok(())
    }

    pub(super) const fn stream(&self) -> &TcpStream {
        &self.stream
    }
}
