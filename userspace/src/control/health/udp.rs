//! Checks by UDP: a datagram and the answer that is expected.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use signalbox_core::model::{UdpProbe, UdpQuestion};
use tokio::net::UdpSocket;

use crate::sys;

/// Longest answer that is looked at.
const MAX_ANSWER: usize = 4096;

/// Smallest datagram that a QUIC server answers (RFC 9000, section 14.1).
const QUIC_DATAGRAM: usize = 1200;
/// Version that no server has, of the pattern that is kept free for this (RFC 9000, section 15).
const QUIC_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];

/// Question of one check, with numbers that only its answer has.
struct Question {
    datagram: Vec<u8>,
    id: [u8; 8],
}

/// Asks a host: what it has answered, or what is wrong with that. Other datagrams than the answer are left unread, for
/// the time of the check.
pub(super) async fn ask(probe: &UdpProbe, target: SocketAddr) -> io::Result<Result<String, String>> {
    let any: SocketAddr = if target.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).await?;
    let question = Question::new(&probe.question)?;
    let mut answer = vec![0; MAX_ANSWER];
    let exchange = async {
        socket.connect(target).await?;
        socket.send(&question.datagram).await?;
        loop {
            let length = socket.recv(&mut answer).await?;
            if let Some(verdict) = question.judge(&probe.question, &answer[..length]) {
                return Ok(verdict);
            }
        }
    };
    let exchange: io::Result<_> = exchange.await;
    Ok(exchange.unwrap_or_else(|error| Err(format!("UDP to {target}: {error}"))))
}

impl Question {
    fn new(question: &UdpQuestion) -> io::Result<Self> {
        let mut id = [0; 8];
        sys::random_bytes(&mut id)?;
        let datagram = match question {
            UdpQuestion::Payload { send, .. } => send.clone(),
            UdpQuestion::Dns { name } => dns_question([id[0], id[1]], name),
            UdpQuestion::Quic => quic_question(id),
        };
        Ok(Self { datagram, id })
    }

    /// Judges a datagram; `None`: it is no answer to this question.
    fn judge(&self, question: &UdpQuestion, answer: &[u8]) -> Option<Result<String, String>> {
        match question {
            UdpQuestion::Payload { expect, .. } => Some(judge_payload(expect, answer)),
            UdpQuestion::Dns { .. } => judge_dns([self.id[0], self.id[1]], answer),
            UdpQuestion::Quic => judge_quic(self.id, answer),
        }
    }
}

fn judge_payload(expect: &[u8], answer: &[u8]) -> Result<String, String> {
    let is_in = expect.is_empty() || answer.windows(expect.len()).any(|part| part == expect);
    let length = answer.len();
    if is_in {
        Ok(format!("answers with {length} bytes"))
    } else {
        Err(format!("the answer of {length} bytes has not what is expected"))
    }
}

/// A question for the IPv4 addresses of a name (RFC 1035, section 4.1).
fn dns_question(id: [u8; 2], name: &str) -> Vec<u8> {
    const RECURSION_DESIRED: u8 = 1;
    let mut datagram = vec![id[0], id[1], RECURSION_DESIRED, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        datagram.push(label.len() as u8);
        datagram.extend_from_slice(label.as_bytes());
    }
    // The root; type A, class IN.
    datagram.extend_from_slice(&[0, 0, 1, 0, 1]);
    datagram
}

fn judge_dns(id: [u8; 2], answer: &[u8]) -> Option<Result<String, String>> {
    const IS_ANSWER: u8 = 0x80;
    const CODES: [&str; 6] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"];
    let &[a, b, flags, codes, ..] = answer else { return None };
    if [a, b] != id || flags & IS_ANSWER == 0 {
        return None;
    }
    let code = codes & 0x0f;
    let name = CODES.get(usize::from(code)).copied().unwrap_or("another error");
    Some(if code == 0 {
        Ok(format!("DNS {name}"))
    } else {
        Err(format!("DNS {name}"))
    })
}

/// The beginning of a connection in a version that no server has: servers name those that they have.
fn quic_question(id: [u8; 8]) -> Vec<u8> {
    const LONG_HEADER: u8 = 0xc0;
    let mut datagram = vec![LONG_HEADER];
    datagram.extend_from_slice(&QUIC_VERSION);
    for id in [id, id.map(|byte| !byte)] {
        datagram.push(id.len() as u8);
        datagram.extend_from_slice(&id);
    }
    datagram.resize(QUIC_DATAGRAM, 0);
    datagram
}

/// Judges a Version Negotiation packet (RFC 9000, section 17.2.1), whose ids are those of the question, exchanged.
fn judge_quic(id: [u8; 8], answer: &[u8]) -> Option<Result<String, String>> {
    let mut expected = vec![8];
    expected.extend_from_slice(&id.map(|byte| !byte));
    expected.push(8);
    expected.extend_from_slice(&id);
    let (head, ids) = answer.split_at_checked(5)?;
    let is_negotiation = head[0] & 0x80 != 0 && head[1..] == [0; 4];
    (is_negotiation && ids.starts_with(&expected)).then(|| Ok("QUIC version negotiation".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_judged() {
        let id = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(judge_payload(b"", b"x"), Ok("answers with 1 bytes".to_owned()));
        assert!(judge_payload(b"pong", b"a pong.").is_ok());
        assert!(judge_payload(b"pong", b"pon").is_err());
        let dns = |bytes: &[u8]| judge_dns([1, 2], bytes);
        assert_eq!(dns(&[1, 2, 0x81, 0x80, 0]), Some(Ok("DNS NOERROR".to_owned())));
        assert_eq!(dns(&[1, 2, 0x81, 0x83, 0]), Some(Err("DNS NXDOMAIN".to_owned())));
        assert_eq!(dns(&[1, 3, 0x81, 0x80, 0]), None, "another question's");
        assert_eq!(dns(&[1, 2, 0x01, 0x00, 0]), None, "a question");
        let mut quic = [0xff, 0, 0, 0, 0, 8].to_vec();
        quic.extend_from_slice(&id.map(|byte| !byte));
        quic.push(8);
        quic.extend_from_slice(&id);
        quic.extend_from_slice(&[0, 0, 0, 1]);
        assert!(judge_quic(id, &quic).unwrap().is_ok());
        assert_eq!(judge_quic(id, &quic[..12]), None);
        quic[4] = 1;
        assert_eq!(judge_quic(id, &quic), None, "a packet of a version");
    }

    #[test]
    fn questions_are_as_the_rfcs_say() {
        let question = dns_question([7, 9], "a.example.");
        assert_eq!(
            question,
            b"\x07\x09\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x01\0\x01"
        );
        let question = quic_question([1; 8]);
        assert_eq!(question.len(), 1200);
        assert_eq!(question[..7], [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1]);
    }
}
