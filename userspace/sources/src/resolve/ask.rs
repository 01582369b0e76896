//! Asking the machine's name servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use signalbox_core::wire::hostname::Hostname;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::message::{Answer, Reply, question, reply};

/// File that names the servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";

const PORT: u16 = 53;

/// Time limit of one question to one server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of times that each server is asked, as long as none answers.
const ROUNDS: usize = 2;

/// Name servers that a file in the format of `resolv.conf` gives; without any, this machine's own.
fn servers(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()?.parse().ok())?
    };
    let given: Vec<IpAddr> = text.lines().filter_map(address).collect();
    if given.is_empty() {
        return vec![Ipv4Addr::LOCALHOST.into()];
    }
    given
}

/// Asks one server after the other for addresses of a kind.
pub(super) async fn ask(name: &Hostname, kind: u16) -> Result<Answer, String> {
    // Read each time: DHCP clients, for example, replace it.
    let text = tokio::fs::read_to_string(RESOLV_CONF).await.unwrap_or_default();
    let mut failure = String::new();
    for _ in 0..ROUNDS {
        for server in servers(&text) {
            let outcome = timeout(ANSWER_TIMEOUT, ask_server(SocketAddr::new(server, PORT), name, kind)).await;
            failure = match outcome {
                Ok(Ok(Reply::Answer(answer))) => return Ok(answer),
                Ok(Ok(Reply::NoName)) => return Err(format!("{server} says that there is no such name")),
                Ok(Ok(Reply::Failed(code))) => format!("{server} cannot answer: it says error {code}"),
                Ok(Ok(Reply::Foreign | Reply::Truncated)) => format!("{server} sends no proper answer"),
                Ok(Err(error)) => format!("{server}: {error}"),
                Err(_) => format!("{server} does not answer"),
            };
        }
    }
    Err(failure)
}

async fn ask_server(server: SocketAddr, name: &Hostname, kind: u16) -> io::Result<Reply> {
    let mut id = [0; 2];
    signalbox_sys::random_bytes(&mut id)?;
    let question = question(u16::from_be_bytes(id), name, kind);
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let size = socket.recv(&mut buffer).await?;
        match reply(buffer.get(..size).unwrap_or_default(), &question) {
            // Anyone can send a datagram: the true answer may still come.
            Reply::Foreign => {}
            Reply::Truncated => return ask_by_tcp(server, &question).await,
            reply => return Ok(reply),
        }
    }
}

/// Asks for an answer that is too large for a datagram.
async fn ask_by_tcp(server: SocketAddr, question: &[u8]) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let size = (question.len() as u16).to_be_bytes();
    stream.write_all(&[&size[..], question].concat()).await?;
    let size = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(size)];
    stream.read_exact(&mut answer).await?;
    Ok(reply(&answer, question))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_those_of_the_file_or_this_machine() {
        let text =
            "# by hand\nsearch example.com\nnameserver 10.2.0.9\nnameserver fe80::1%eth0\nnameserver fd00:2::9\n";
        let wanted: [IpAddr; 2] = ["10.2.0.9".parse().unwrap(), "fd00:2::9".parse().unwrap()];
        assert_eq!(servers(text), wanted);
        assert_eq!(servers("options edns0\n"), ["127.0.0.1".parse::<IpAddr>().unwrap()]);
    }
}
