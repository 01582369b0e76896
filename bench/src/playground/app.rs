//! The application of a router host: sends as many bytes as a request asks for.

use std::io::{BufRead, BufReader, Read as _, Result, Write as _};
use std::net::TcpStream;

use signalbox_lab::{Ns, Server};

/// Address of the application, in the host's own namespace.
pub(super) const AT: &str = "127.0.0.1:8080";
/// Beginning of the paths that it serves; a size follows.
pub(super) const BYTES: &str = "/bytes/";

/// Starts the application in `ns`.
pub(super) fn start(ns: &Ns) -> Server {
    Server::start(ns, AT, |stream| {
        let _ = serve(&stream);
    })
}

/// Answers requests of one connection until the router host closes it.
fn serve(mut to: &TcpStream) -> Result<()> {
    let mut reader = BufReader::new(to);
    while let Some(path) = read_path(&mut reader)? {
        if let Some(size) = path.strip_prefix(BYTES).and_then(parse_size) {
            write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")?;
            std::io::copy(&mut std::io::repeat(b'x').take(size), &mut to)?;
        } else {
            let body = format!("{BYTES} is followed by a number, such as 500K, 20M or 4G\n");
            let length = body.len();
            write!(to, "HTTP/1.1 400 Bad Request\r\nContent-Length: {length}\r\n\r\n{body}")?;
        }
    }
    Ok(())
}

/// Reads a request, which HAProxy has found to be valid, and returns its path; `None` at the end of the connection.
fn read_path(reader: &mut impl BufRead) -> Result<Option<String>> {
    let mut lines = reader.lines();
    let Some(first) = lines.next().transpose()? else {
        return Ok(None);
    };
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    Ok(first.split(' ').nth(1).map(str::to_owned))
}

/// Parses a size: `500K`, `20M`, `4G` or a number of bytes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_up_to_its_empty_line() {
        let mut reader = "GET /bytes/1K HTTP/1.1\r\nHost: a.example\r\n\r\nGET / HTTP/1.1\r\n\r\n".as_bytes();
        let mut next = || read_path(&mut reader).unwrap();
        assert_eq!(
            (next().as_deref(), next().as_deref(), next()),
            (Some("/bytes/1K"), Some("/"), None)
        );
    }

    #[test]
    fn sizes() {
        assert_eq!(["7", "2K", "3G"].map(parse_size), [Some(7), Some(2048), Some(3 << 30)]);
        assert_eq!(["", "K", "1KK", "-1", "99999999999G"].map(parse_size), [None; 5]);
    }
}
