//! A small HTTP/1.1 client over any stream, and curl for tests that need a real one.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};

use super::namespace::connect_here;
use super::topology::Lab;

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    /// The status code.
    pub(crate) status: u16,
    /// The header, names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    /// The body.
    pub(crate) body: String,
}

impl Response {
    /// Returns a field of a router host's answer, about itself or the request: `host`, `name`, `sni` or `client`.
    pub(crate) fn field(&self, key: &str) -> String {
        field(&self.body, key)
    }
}

/// `value` of `key=value` in a router host's answer; empty if it is not there.
pub(crate) fn field(body: &str, key: &str) -> String {
    let value = body
        .split_whitespace()
        .find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_default().to_owned()
}

/// A GET on a connection that stays open for more.
pub(crate) fn get<S>(stream: S, host: &str, path: &str) -> Result<Response>
where
    S: Read + Write,
{
    request(stream, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

/// Sends a whole request and reads its response.
pub(crate) fn request<S: Read + Write>(mut stream: S, text: &str) -> Result<Response> {
    stream.write_all(text.as_bytes())?;
    read_response(stream)
}

/// Reads one response. Nothing may follow it: bytes read ahead are lost.
pub(crate) fn read_response(stream: impl Read) -> Result<Response> {
    let mut reader = BufReader::new(stream);
    let line = read_line(&mut reader)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .ok_or_else(|| bad(&line))?;
    let mut headers = BTreeMap::new();
    loop {
        let line = read_line(&mut reader)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    if let Some(length) = headers.get("content-length") {
        body.resize(length.parse().map_err(|_| bad(length))?, 0);
        reader.read_exact(&mut body)?;
    } else if headers.get("transfer-encoding").is_some_and(|e| e == "chunked") {
        loop {
            let size = read_line(&mut reader)?;
            let size = usize::from_str_radix(size.trim(), 16).map_err(|_| bad(&size))?;
            let start = body.len();
            body.resize(start + size, 0);
            reader.read_exact(&mut body[start..])?;
            read_line(&mut reader)?;
            if size == 0 {
                break;
            }
        }
    } else {
        reader.read_to_end(&mut body)?;
    }
    Ok(Response {
        status,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

fn read_line(reader: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not HTTP: {what:?}"))
}

/// Sends a GET of `/` on a separate connection, from the client's namespace.
pub(crate) fn ask(lab: &Lab, at: &str, host: &str) -> Response {
    get(lab.client.connect(at), host, "/").unwrap_or_else(|e| panic!("GET / of {host} at {at}: {e}"))
}

/// Sends a GET on a thread that is in the client's namespace already; returns the router host that answered 200.
pub(crate) fn ask_here(at: &str, host: &str) -> std::result::Result<String, String> {
    let stream = connect_here(at).map_err(|e| format!("connect: {e}"))?;
    let response = get(&stream, host, "/").map_err(|e| format!("request: {e}"))?;
    if response.status == 200 {
        Ok(response.field("host"))
    } else {
        Err(format!("status {}", response.status))
    }
}

/// Result of curl.
pub(crate) struct Curl {
    /// The exit code: 0 for a complete answer.
    pub(crate) code: i32,
    /// The body.
    pub(crate) body: String,
    /// Output of `-v`, which has the subject of the server's certificate.
    pub(crate) trace: String,
}

/// Runs curl in the client's namespace; names resolve to `address`, and only the router hosts' certificates count.
pub(crate) fn curl(lab: &Lab, address: &str, words: &[&str]) -> Curl {
    let ca = lab.dir().join("ca.pem");
    let mut command = lab.client.command("curl");
    command.args([
        "-sv",
        "--max-time",
        "30",
        "--noproxy",
        "*",
        "--resolve",
        &format!("*:80:{address}"),
    ]);
    command
        .args(["--resolve", &format!("*:443:{address}"), "--cacert"])
        .arg(ca)
        .args(words);
    let output = command.output().unwrap();
    Curl {
        code: output.status.code().unwrap_or(-1),
        body: String::from_utf8_lossy(&output.stdout).into_owned(),
        trace: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
