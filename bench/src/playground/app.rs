//! The application behind a router host: says on which host it runs, and sends as much as is asked for.

use std::io::{BufRead as _, BufReader, Read as _, Result, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};

use crate::lab::Ns;

/// Address of the application, in the host's own namespace.
pub(super) const AT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);

/// Starts the application in `ns`. It ends with this process: nothing of it is outside but a socket in a namespace that
/// is removed.
pub(super) fn start(ns: &Ns, name: &'static str) -> anyhow::Result<()> {
    let listener = ns.run(|| Ok(TcpListener::bind(AT)?))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(&stream, name));
        }
    });
    Ok(())
}

/// Answers requests of one connection until the router host closes it.
fn serve(stream: &TcpStream, name: &str) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        let mut to = stream;
        match request.path.strip_prefix("/bytes/").map(parse_size) {
            Some(Some(size)) => {
                write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")?;
                std::io::copy(&mut std::io::repeat(b'x').take(size), &mut to)?;
            }
            Some(None) => answer(
                to,
                "400 Bad Request",
                "/bytes/ is followed by a number, such as 500K, 20M or 4G\n",
            )?,
            None => {
                let (host, scheme) = (&request.host, &request.scheme);
                answer(to, "200 OK", &format!("{name} answers for {host} over {scheme}\n"))?;
            }
        }
    }
    Ok(())
}

fn answer(mut to: &TcpStream, status: &str, body: &str) -> Result<()> {
    let length = body.len();
    write!(
        to,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// The parts of a request that matter. HAProxy has seen to it that the request is valid.
#[derive(Debug, PartialEq)]
struct Request {
    path: String,
    host: String,
    scheme: String,
}

impl Request {
    /// Reads a request; `None` at the end of the connection.
    fn read(reader: &mut impl std::io::BufRead) -> Result<Option<Self>> {
        let mut lines = reader.lines();
        let Some(first) = lines.next().transpose()? else {
            return Ok(None);
        };
        let mut request = Self {
            path: first.split(' ').nth(1).unwrap_or_default().to_owned(),
            host: String::new(),
            scheme: "http".to_owned(),
        };
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "host" => value.trim().clone_into(&mut request.host),
                "x-forwarded-proto" => value.trim().clone_into(&mut request.scheme),
                _ => {}
            }
        }
        Ok(Some(request))
    }
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
        let text =
            "GET /bytes/1K HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-Proto: https\r\n\r\nGET / HTTP/1.1\r\n\r\n";
        let mut reader = text.as_bytes();
        let first = Request::read(&mut reader).unwrap().unwrap();
        assert_eq!(
            (first.path.as_str(), first.host.as_str(), first.scheme.as_str()),
            ("/bytes/1K", "a.example", "https")
        );
        assert_eq!(Request::read(&mut reader).unwrap().unwrap().path, "/");
        assert_eq!(Request::read(&mut reader).unwrap(), None);
    }

    #[test]
    fn sizes() {
        assert_eq!(["7", "2K", "3G"].map(parse_size), [Some(7), Some(2048), Some(3 << 30)]);
        assert_eq!(["", "K", "1KK", "-1", "99999999999G"].map(parse_size), [None; 5]);
    }
}
