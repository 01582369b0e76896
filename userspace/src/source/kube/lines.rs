//! Lines of an HTTP body, as a watch has them.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use tokio::time::timeout;

use super::watch_error::WatchError;

/// Longest line in bytes: etcd limits objects to 1.5 MiB.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Reads a body piece by piece.
pub(super) struct Lines {
    body: Incoming,
    /// Bytes that have been received and not been returned.
    buffer: Vec<u8>,
    /// Number of bytes that have been searched for a newline.
    searched: usize,
    silence: Duration,
}

impl Lines {
    /// Makes a reader. `silence`: the longest time without data.
    pub(super) fn new(body: Incoming, silence: Duration) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            searched: 0,
            silence,
        }
    }

    /// Returns the next line; `None` at the end. A last line without a newline was cut off and is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, WatchError> {
        loop {
            let new = self.buffer.iter().skip(self.searched).position(|byte| *byte == b'\n');
            if let Some(at) = new {
                let rest = self.buffer.split_off(self.searched + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                line.pop();
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > MAX_LINE_BYTES {
                return Err(WatchError::Garbled("a line has no end".to_owned()));
            }
            match next_chunk(&mut self.body, self.silence).await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(WatchError::Broken("the watch ended within an event".to_owned())),
            }
        }
    }
}

/// Returns the next bytes of a body; `None` at its end.
async fn next_chunk(body: &mut Incoming, silence: Duration) -> Result<Option<Bytes>, WatchError> {
    loop {
        match timeout(silence, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(error))) => return Err(WatchError::Broken(crate::sys::error_chain(&error))),
            Ok(None) => return Ok(None),
            Err(_) => return Err(WatchError::Broken(format!("nothing came for {silence:?}"))),
        }
    }
}

/// Reads a whole body of at most `most` bytes.
pub(super) async fn read_body(mut body: Incoming, max: usize, silence: Duration) -> Result<Vec<u8>, WatchError> {
    let mut bytes = Vec::new();
    while let Some(piece) = next_chunk(&mut body, silence).await? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > max {
            return Err(WatchError::Garbled(format!("the answer is longer than {max} bytes")));
        }
    }
    Ok(bytes)
}
