//! Parser that finds the end of an HTTP/1.1 response: it knows only our own servers' responses, but counts every byte.

/// A response, as far as it has arrived.
#[derive(Default)]
pub(crate) struct Response {
    head: Vec<u8>,
    body_left: Option<usize>,
}

/// Longest head of a response; longer ones are not our servers'.
const MAX_HEAD: usize = 4096;

impl Response {
    /// Resets the parser for another response.
    pub(crate) fn reset(&mut self) {
        self.head.clear();
        self.body_left = None;
    }

    /// Parses the bytes that have arrived: whether the response is complete, or why it is wrong.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<bool, &'static str> {
        let body = match self.body_left {
            Some(_) => bytes.len(),
            None => self.take_head(bytes)?,
        };
        let Some(left) = &mut self.body_left else {
            return Ok(false);
        };
        *left = left.checked_sub(body).ok_or("more than the response")?;
        Ok(*left == 0)
    }

    /// Parses bytes of the head: how many of them belong to the body already.
    fn take_head(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let before = self.head.len();
        self.head.extend_from_slice(&bytes[..bytes.len().min(MAX_HEAD)]);
        let end = self.head.windows(4).position(|w| w == b"\r\n\r\n");
        let Some(end) = end.map(|at| at + 4) else {
            return if self.head.len() >= MAX_HEAD {
                Err("not HTTP")
            } else {
                Ok(0)
            };
        };
        let head = str::from_utf8(&self.head[..end]).map_err(|_| "not HTTP")?;
        if !head.starts_with("HTTP/1.1 200 ") {
            return Err("status");
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then_some(value)
        });
        self.body_left = Some(length.and_then(|n| n.parse().ok()).ok_or("no length")?);
        Ok(bytes.len() - (end - before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello";

    #[test]
    fn complete_however_it_is_cut() {
        for cut in 0..OK.len() {
            let mut response = Response::default();
            assert_eq!(response.take(&OK[..cut]), Ok(false), "cut at {cut}");
            assert_eq!(response.take(&OK[cut..]), Ok(true), "cut at {cut}");
            response.reset();
            assert_eq!(response.take(OK), Ok(true));
        }
    }

    #[test]
    fn a_wrong_response_is_refused_with_the_reason() {
        let take = |bytes: &[u8]| Response::default().take(bytes);
        assert_eq!(take(&[OK, b"!"].concat()), Err("more than the response"));
        assert_eq!(take(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"), Err("status"));
        assert_eq!(take(b"HTTP/1.1 200 OK\r\n\r\n"), Err("no length"));
        assert_eq!(take(&[b'x'; 5000]), Err("not HTTP"));
    }
}
