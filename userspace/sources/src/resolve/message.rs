//! Questions for addresses and their answers, as name servers speak (RFC 1035, section 4).

use std::net::IpAddr;
use std::time::Duration;

use signalbox_core::wire::hostname::Hostname;

/// Kinds of addresses: `A` and `AAAA`.
pub(super) const KINDS: [u16; 2] = [1, 28];

const CLASS_INTERNET: u16 = 1;
const HEADER_BYTES: usize = 12;
const RECURSION_DESIRED: u16 = 0x0100;
const IS_RESPONSE: u8 = 0x80;
const IS_TRUNCATED: u8 = 0x02;

/// Addresses of one kind, and how long they hold; `None`: there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ttl: Option<Duration>,
}

/// Reading of a datagram or message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Answer to another question, or to none.
    Foreign,
    /// Part of an answer: ask for the whole one over TCP.
    Truncated,
    /// Answer that there is no such name.
    NoName,
    /// The server cannot answer, with its code (RFC 1035, section 4.1.1).
    Failed(u8),
    Answer(Answer),
}

/// Question for the addresses of a kind.
pub(super) fn question(id: u16, name: &Hostname, kind: u16) -> Vec<u8> {
    let mut message: Vec<u8> = [id, RECURSION_DESIRED, 1, 0, 0, 0]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect();
    for label in name.as_str().split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(kind.to_be_bytes());
    message.extend(CLASS_INTERNET.to_be_bytes());
    message
}

/// Reads a possible answer to a question.
pub(super) fn reply(message: &[u8], question: &[u8]) -> Reply {
    let asked = question.get(HEADER_BYTES..).unwrap_or_default();
    let repeated = message.get(HEADER_BYTES..question.len());
    let is_ours = message.get(..2) == question.get(..2) && repeated.is_some_and(|it| it.eq_ignore_ascii_case(asked));
    let (Some(&[flags, more]), true) = (message.get(2..4), is_ours) else {
        return Reply::Foreign;
    };
    match more & 0x0f {
        _ if flags & IS_RESPONSE == 0 => Reply::Foreign,
        _ if flags & IS_TRUNCATED != 0 => Reply::Truncated,
        0 => records(message, question).map_or(Reply::Foreign, Reply::Answer),
        3 => Reply::NoName,
        code => Reply::Failed(code),
    }
}

/// Addresses of the requested kind among the answers, without aliases; `None`: the message is cut short.
fn records(message: &[u8], question: &[u8]) -> Option<Answer> {
    let kind = question.get(question.len().checked_sub(4)?..)?.get(..2)?;
    let count = u16::from_be_bytes(message.get(6..8)?.try_into().ok()?);
    let mut answer = Answer {
        addresses: Vec::new(),
        ttl: None,
    };
    let mut at = question.len();
    for _ in 0..count {
        at = after_name(message, at)?;
        let head = message.get(at..at + 10)?;
        let seconds = u32::from_be_bytes(head.get(4..8)?.try_into().ok()?);
        let ttl = Duration::from_secs(seconds.into());
        answer.ttl = Some(answer.ttl.map_or(ttl, |least: Duration| least.min(ttl)));
        let size = usize::from(u16::from_be_bytes(head.get(8..10)?.try_into().ok()?));
        let data = message.get(at + 10..at + 10 + size)?;
        if head.get(..2)? == kind && head.get(2..4)? == CLASS_INTERNET.to_be_bytes() {
            answer.addresses.extend(address(data));
        }
        at += 10 + size;
    }
    Some(answer)
}

/// Offset after a name, which ends with a root label or with a reference to another name.
fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match usize::from(*message.get(at)?) {
            0 => return Some(at + 1),
            label if label & 0xc0 != 0 => return Some(at + 2),
            label => at += 1 + label,
        }
    }
}

/// Address of a machine; name servers that block names return others.
fn address(data: &[u8]) -> Option<IpAddr> {
    let address = match data.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(data).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(data).ok()?).to_canonical(),
        _ => return None,
    };
    (!address.is_unspecified() && !address.is_multicast()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Vec<u8> {
        question(7, &Hostname::parse(b"db.example.com").unwrap(), KINDS[0])
    }

    /// Answer with these flags and records, each `(owner, kind, ttl, data)`.
    fn answer(flags: [u8; 2], records: &[(&[u8], u16, u32, &[u8])]) -> Vec<u8> {
        let mut message = asked();
        message[2..4].copy_from_slice(&flags);
        message[7] = records.len() as u8;
        for (owner, kind, ttl, data) in records {
            message.extend(*owner);
            message.extend(kind.to_be_bytes());
            message.extend(CLASS_INTERNET.to_be_bytes());
            message.extend(ttl.to_be_bytes());
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(*data);
        }
        message
    }

    #[test]
    fn addresses_behind_an_alias_hold_for_the_least_time() {
        let records: [(&[u8], u16, u32, &[u8]); 3] = [
            (&[0xc0, 12], 5, 30, &[3, b'd', b'b', b'2', 0]),
            (&[3, b'd', b'b', b'2', 0], 1, 60, &[10, 2, 0, 2]),
            (&[3, b'd', b'b', b'2', 0], 1, 60, &[0, 0, 0, 0]),
        ];
        let wanted = Answer {
            addresses: vec![[10, 2, 0, 2].into()],
            ttl: Some(Duration::from_secs(30)),
        };
        assert_eq!(reply(&answer([0x81, 0x80], &records), &asked()), Reply::Answer(wanted));
    }

    #[test]
    fn only_an_answer_to_the_question_counts() {
        let question = asked();
        assert_eq!(reply(&question, &question), Reply::Foreign, "a question");
        assert_eq!(reply(&answer([0x83, 0x80], &[]), &question), Reply::Truncated);
        assert_eq!(reply(&answer([0x81, 0x83], &[]), &question), Reply::NoName);
        assert_eq!(reply(&answer([0x81, 0x82], &[]), &question), Reply::Failed(2));
        let mut other = answer([0x81, 0x80], &[]);
        other[13] = b'x';
        assert_eq!(reply(&other, &question), Reply::Foreign, "another name");
        let whole = answer([0x81, 0x80], &[(&[0xc0, 12], 1, 60, &[10, 2, 0, 2])]);
        for end in 0..whole.len() {
            assert_eq!(reply(&whole[..end], &question), Reply::Foreign, "cut at {end}");
        }
    }
}
