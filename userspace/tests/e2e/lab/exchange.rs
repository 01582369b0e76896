//! Exchanges in which every byte counts: both directions at once, in chunks of random size, checked by SHA-256.
//!
//! The client says in 24 bytes what will happen (seed, bytes up, bytes down), then both sides send. The server closes
//! with the digest of the bytes that it received, so that the client can judge both directions.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};

use sha2::{Digest, Sha256};

use super::namespace::Ns;
use super::servers::Server;

/// Bytes that are the same for the same seed, and no two stretches of them alike.
pub(crate) struct Noise(u64);

impl Noise {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number from 1 to `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        self.next() % most + 1
    }

    /// The next bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            let next = self.next().to_le_bytes();
            word.copy_from_slice(&next[..word.len()]);
        }
    }
}

/// Sends `len` bytes of a seed in chunks of 1 byte to 64 KiB; returns their digest.
fn send(mut to: &TcpStream, seed: u64, len: u64) -> Result<[u8; 32]> {
    let (mut noise, mut sizes, mut hash) = (Noise::new(seed), Noise::new(!seed), Sha256::new());
    let mut buffer = vec![0; 64 * 1024];
    let mut left = len;
    while left > 0 {
        // Mostly large, now and then tiny: a tier may have faults with either.
        let most = if sizes.next().is_multiple_of(8) {
            100
        } else {
            buffer.len() as u64
        };
        let size = sizes.up_to(most).min(left);
        let chunk = &mut buffer[..size as usize];
        noise.fill(chunk);
        hash.update(&*chunk);
        to.write_all(chunk)?;
        left -= size;
    }
    Ok(hash.finalize().into())
}

/// Receives until the end; returns the digest of all except the last `tail` bytes, the number of those, and the tail.
fn receive(mut from: &TcpStream, tail: usize) -> Result<([u8; 32], u64, Vec<u8>)> {
    let (mut hash, mut count) = (Sha256::new(), 0);
    let mut buffer = vec![0; 128 * 1024];
    let mut held = Vec::new();
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        held.extend_from_slice(&buffer[..n]);
        if held.len() > tail {
            let done = held.len() - tail;
            hash.update(&held[..done]);
            count += done as u64;
            held.drain(..done);
        }
    }
    Ok((hash.finalize().into(), count, held))
}

/// The server's side.
pub(crate) fn server(ns: &Ns, at: &str) -> Server {
    Server::start(ns, at, |stream| {
        let _ = serve(&stream);
    })
}

/// The server's side of one connection.
pub(crate) fn serve(stream: &TcpStream) -> Result<()> {
    let mut header = [0; 24];
    (&*stream).read_exact(&mut header)?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let (seed, down) = (number(0), number(16));
    let digest = std::thread::scope(|scope| {
        let received = scope.spawn(|| receive(stream, 0));
        send(stream, !seed, down)?;
        received
            .join()
            .map_err(|_| Error::other("the receiver panicked"))?
            .map(|(digest, ..)| digest)
    })?;
    (&*stream).write_all(&digest)?;
    stream.shutdown(Shutdown::Write)
}

/// The client's side: an error unless every byte arrived in both directions.
pub(crate) fn client(stream: &TcpStream, seed: u64, up: u64, down: u64) -> Result<()> {
    let header: Vec<u8> = [seed, up, down].iter().flat_map(|n| n.to_le_bytes()).collect();
    (&*stream).write_all(&header)?;
    let (sent, received) = std::thread::scope(|scope| {
        let received = scope.spawn(|| receive(stream, 32));
        let sent = send(stream, seed, up).and_then(|digest| stream.shutdown(Shutdown::Write).map(|()| digest));
        (sent, received.join().map_err(|_| Error::other("the receiver panicked")))
    });
    let (sent, (digest, count, tail)) = (sent?, received??);
    let mut expected = Sha256::new();
    let mut noise = Noise::new(!seed);
    let mut left = down;
    // The server's chunks decide where words are cut, so its bytes are made again in the same chunks.
    let mut sizes = Noise::new(seed);
    let mut buffer = vec![0; 64 * 1024];
    while left > 0 {
        let most = if sizes.next().is_multiple_of(8) {
            100
        } else {
            buffer.len() as u64
        };
        let size = sizes.up_to(most).min(left);
        noise.fill(&mut buffer[..size as usize]);
        expected.update(&buffer[..size as usize]);
        left -= size;
    }
    let wrong = |what: String| Err(Error::new(ErrorKind::InvalidData, what));
    if count != down || digest != <[u8; 32]>::from(expected.finalize()) {
        return wrong(format!("down: {count} of {down} bytes, or other ones"));
    }
    if tail != sent {
        return wrong(format!("up: the server received other bytes than the {up} sent"));
    }
    Ok(())
}
