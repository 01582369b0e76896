//! Bodies of HTTP answers, read whole or line by line, with limits.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use tokio::time::timeout;

/// Reason why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("{0}")]
    Broken(String),
    #[error("the answer, or a line of it, is longer than {0} bytes")]
    TooLong(usize),
}

/// Body of an answer.
pub struct Body {
    incoming: Incoming,
    /// Bytes that have been received and not been returned.
    buffer: Vec<u8>,
    /// Number of bytes that have been searched for a newline.
    searched: usize,
    silence: Duration,
}

impl Body {
    /// Makes a reader. `silence`: the longest time without data.
    #[must_use]
    pub const fn new(incoming: Incoming, silence: Duration) -> Self {
        Self {
            incoming,
            buffer: Vec::new(),
            searched: 0,
            silence,
        }
    }

    /// Returns the next line, of at most `max` bytes or so; `None` at the end. A last line without a newline was cut
    /// off, which is an error.
    pub async fn line(&mut self, max: usize) -> Result<Option<Vec<u8>>, BodyError> {
        loop {
            let new = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
            if let Some(at) = new {
                let rest = self.buffer.split_off(self.searched + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                line.pop();
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > max {
                return Err(BodyError::TooLong(max));
            }
            match self.chunk().await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(BodyError::Broken("the answer ended within a line".to_owned())),
            }
        }
    }

    /// Reads all of a body of at most `max` bytes.
    pub async fn whole(mut self, max: usize) -> Result<Vec<u8>, BodyError> {
        while let Some(piece) = self.chunk().await? {
            self.buffer.extend_from_slice(&piece);
            if self.buffer.len() > max {
                return Err(BodyError::TooLong(max));
            }
        }
        Ok(self.buffer)
    }

    /// Returns the next bytes; `None` at the end. Trailers are ignored.
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            match timeout(self.silence, self.incoming.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(error))) => return Err(BodyError::Broken(signalbox_sys::error_chain(&error))),
                Ok(None) => return Ok(None),
                Err(_) => return Err(BodyError::Broken(format!("nothing came for {:?}", self.silence))),
            }
        }
    }
}
