//! The lines of a body, of which a watch is made.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use tokio::time::timeout;

use super::trouble::Trouble;

/// No object is nearly as large: etcd takes 1.5 MiB.
const LONGEST: usize = 16 << 20;

/// Reads a body piece by piece.
pub(super) struct Lines {
    body: Incoming,
    /// What has come and not been taken.
    buffer: Vec<u8>,
    /// How much of it has been searched.
    searched: usize,
    silence: Duration,
}

impl Lines {
    /// `silence`: the longest time without a piece.
    pub(super) fn new(body: Incoming, silence: Duration) -> Self {
        Self {
            body,
            buffer: Vec::new(),
            searched: 0,
            silence,
        }
    }

    /// The next line; `None` at the end. What stands at the end without a newline was cut off and is no line.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Trouble> {
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
            if self.searched > LONGEST {
                return Err(Trouble::Garbled("a line has no end".to_owned()));
            }
            match piece(&mut self.body, self.silence).await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Trouble::Broken("the watch ended within an event".to_owned())),
            }
        }
    }
}

/// The next bytes of a body; `None` at its end.
async fn piece(body: &mut Incoming, silence: Duration) -> Result<Option<Bytes>, Trouble> {
    loop {
        match timeout(silence, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(error))) => return Err(Trouble::Broken(crate::error_chain(&error))),
            Ok(None) => return Ok(None),
            Err(_) => return Err(Trouble::Broken(format!("nothing came for {silence:?}"))),
        }
    }
}

/// A whole body of at most `most` bytes.
pub(super) async fn whole(mut body: Incoming, most: usize, silence: Duration) -> Result<Vec<u8>, Trouble> {
    let mut bytes = Vec::new();
    while let Some(piece) = piece(&mut body, silence).await? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > most {
            return Err(Trouble::Garbled(format!("the answer is longer than {most} bytes")));
        }
    }
    Ok(bytes)
}
