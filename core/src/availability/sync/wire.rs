//! Messages between balancers: how records of flows travel.
//!
//! A connection carries messages one after the other: one byte for the kind, two for the length of the body, the body;
//! numbers are big-endian. A kind that the receiver does not know is skipped, so that later versions may add some; any
//! other change needs another [`PROTOCOL`].

use signalbox_common::cut::flow::LAST_REQUEST;
use signalbox_common::net::Key;
use signalbox_common::net::ip::TCP;

use super::record::FlowRecord;
use super::service::ServiceRecord;

/// Version of the protocol: balancers of different ones do not replicate.
pub const PROTOCOL: u16 = 1;
/// First bytes of a [`Hello`]: says that the peer speaks this protocol at all.
const MAGIC: [u8; 8] = *b"SBXSYNC\n";
/// Kind and length of a message, in bytes.
const HEADER_BYTES: usize = 3;
/// Most bytes of a node's name.
const MAX_NODE_NAME_BYTES: usize = 255;
/// Most parts of a name, and most bytes of all of them.
const MAX_NAME_PARTS: usize = 8;
const MAX_NAME_BYTES: usize = 319;

const HELLO: u8 = 1;
const NAME: u8 = 2;
const FLOW: u8 = 3;
const END: u8 = 4;
const FULL_BEGIN: u8 = 5;
const FULL_END: u8 = 6;
const BATCH: u8 = 7;
const ACK: u8 = 8;
const SERVICE_FLOW: u8 = 9;
const SERVICE_END: u8 = 10;
const SERVICE_FULL_END: u8 = 11;
/// Kind of a flow with [`LAST_REQUEST`]: balancers that do not know it would forward further bytes of the client.
const LAST_REQUEST_FLOW: u8 = 12;
const HAND_OVER: u8 = 13;
const RECLAIM: u8 = 14;
const RECLAIM_ANSWER: u8 = 15;
const COOKIE_KEY: u8 = 16;
/// Bytes of a [`MovedAddress`].
const MOVED_ADDRESS_BYTES: usize = 22;

/// First message of each side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the protocol: [`PROTOCOL`].
    pub protocol: u16,
    /// Position of the sender in the list of nodes.
    pub slot: u8,
    /// Number of nodes: source ports are divided by it.
    pub nodes: u8,
    /// Name of the sender.
    pub node: String,
}

/// A name that flows refer to by number. Sent before its first use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Sender's number.
    pub number: u32,
    /// Kind and parts: `host`, cluster, name, address; `listener`, name; `route`, name.
    pub parts: Vec<String>,
}

/// Addresses that the sender is about to give up, while it still serves their connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandOver {
    /// Seconds for which the sender serves them; 0: it keeps the addresses after all.
    pub seconds: u16,
    /// Addresses, at most [`MAX_HANDED_OVER`].
    pub addresses: Vec<MovedAddress>,
}

/// Most addresses of a [`HandOver`].
pub const MAX_HANDED_OVER: usize = (u16::MAX as usize - 2) / MOVED_ADDRESS_BYTES;

/// An address of a [`HandOver`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedAddress {
    /// Words of the address, IPv4 mapped into IPv6.
    pub address: [u32; 4],
    /// Ethernet address of the sender on the address' segment.
    pub mac: [u8; 6],
}

/// Key of the sender's SYN cookies. Its `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SharedCookieKey {
    /// Microseconds since 1970 at which the key was made: the oldest key is used.
    pub born: u64,
    /// The key.
    pub key: [u64; 2],
    /// Milliseconds of the key's clock when the message was sent.
    pub clock_ms: u64,
}

impl std::fmt::Debug for SharedCookieKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedCookieKey {{ born: {}, .. }}", self.born)
    }
}

/// Message from one balancer to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Name and place of the sender.
    Hello(Hello),
    /// A name, for the flows that follow.
    Name(Name),
    /// A flow that the sender carries.
    Flow(Box<FlowRecord>),
    /// The flow with this index has ended.
    End(u32),
    /// All flows of the sender follow.
    FullBegin,
    /// All flows of the sender have been sent. These groups of virtual addresses were its own during that whole time:
    /// flows to them that were not sent have ended.
    FullEnd(Vec<String>),
    /// A connection of a layer-4 service that the sender carries.
    ServiceFlow(Box<ServiceRecord>),
    /// The connection of a layer-4 service with this key of the client's direction has ended.
    ServiceEnd(Box<Key>),
    /// As [`Self::FullEnd`], of the connections of layer-4 services.
    ServiceFullEnd(Vec<String>),
    /// Addresses move by plan.
    HandOver(Box<HandOver>),
    /// The sender is about to take these groups of virtual addresses, and asks their node to hand them over first.
    Reclaim(Vec<String>),
    /// The groups that the receiver reclaims are handed over, as far as the sender has them.
    ReclaimAnswer,
    /// Key of the sender's SYN cookies, and its clock.
    CookieKey(SharedCookieKey),
    /// Asks the peer to acknowledge everything before this message with its number.
    Batch(u32),
    /// Everything up to the batch with this number is applied.
    Ack(u32),
}

/// Reason why bytes of a peer are no messages of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The first message is another protocol's.
    #[error("the peer does not speak signalbox's replication protocol")]
    NotOurs,
    /// A message is shorter or longer than its kind allows.
    #[error("a message of kind {kind} has {bytes} bytes, which its kind does not allow")]
    Length {
        /// Kind of the message.
        kind: u8,
        /// Length of its body.
        bytes: usize,
    },
    /// A text is not UTF-8, or too long.
    #[error("a message of kind {0} has a text that is too long or not UTF-8")]
    Text(u8),
}

impl Message {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([self.kind(), 0, 0]);
        match self {
            Self::Hello(hello) => {
                out.extend(MAGIC);
                out.extend(hello.protocol.to_be_bytes());
                out.extend([hello.slot, hello.nodes]);
                out.extend(truncated(&hello.node, MAX_NODE_NAME_BYTES).bytes());
            }
            Self::Name(name) => {
                out.extend(name.number.to_be_bytes());
                out.extend(truncated(&name.parts.join("\0"), MAX_NAME_BYTES).bytes());
            }
            Self::Flow(record) => put_record(record, out),
            Self::End(number) | Self::Batch(number) | Self::Ack(number) => out.extend(number.to_be_bytes()),
            Self::FullBegin | Self::ReclaimAnswer => {}
            Self::FullEnd(groups) | Self::ServiceFullEnd(groups) | Self::Reclaim(groups) => put_groups(groups, out),
            Self::ServiceFlow(record) => put_service_record(record, out),
            Self::ServiceEnd(key) => {
                put_addresses(&[key.source, key.destination], out);
                out.extend(key.ports.to_be_bytes());
            }
            Self::HandOver(hand_over) => put_hand_over(hand_over, out),
            Self::CookieKey(shared) => {
                let numbers = [shared.born, shared.key[0], shared.key[1], shared.clock_ms];
                out.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
            }
        }
        let bytes = (out.len() - start - HEADER_BYTES) as u16;
        out[start + 1..start + HEADER_BYTES].copy_from_slice(&bytes.to_be_bytes());
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => HELLO,
            Self::Name(_) => NAME,
            Self::Flow(record) if record.flags[0] & LAST_REQUEST != 0 => LAST_REQUEST_FLOW,
            Self::Flow(_) => FLOW,
            Self::End(_) => END,
            Self::FullBegin => FULL_BEGIN,
            Self::FullEnd(_) => FULL_END,
            Self::Batch(_) => BATCH,
            Self::Ack(_) => ACK,
            Self::ServiceFlow(_) => SERVICE_FLOW,
            Self::ServiceEnd(_) => SERVICE_END,
            Self::ServiceFullEnd(_) => SERVICE_FULL_END,
            Self::HandOver(_) => HAND_OVER,
            Self::Reclaim(_) => RECLAIM,
            Self::ReclaimAnswer => RECLAIM_ANSWER,
            Self::CookieKey(_) => COOKIE_KEY,
        }
    }

    /// Decodes the body of a message; `None` for a kind that this version does not know.
    fn decode(kind: u8, body: &[u8]) -> Result<Option<Self>, WireError> {
        let wrong = || WireError::Length {
            kind,
            bytes: body.len(),
        };
        let number = || -> Result<u32, WireError> { Ok(u32::from_be_bytes(body.try_into().map_err(|_| wrong())?)) };
        let empty = || if body.is_empty() { Ok(()) } else { Err(wrong()) };
        Ok(Some(match kind {
            HELLO => Self::Hello(hello(body).ok_or_else(wrong)??),
            NAME => Self::Name(name(body).ok_or_else(wrong)??),
            FLOW => Self::Flow(Box::new(record(body).ok_or_else(wrong)?)),
            LAST_REQUEST_FLOW => {
                let mut record = record(body).ok_or_else(wrong)?;
                record.flags[0] |= LAST_REQUEST;
                Self::Flow(Box::new(record))
            }
            END => Self::End(number()?),
            BATCH => Self::Batch(number()?),
            ACK => Self::Ack(number()?),
            FULL_BEGIN => empty().map(|()| Self::FullBegin)?,
            FULL_END => Self::FullEnd(groups(kind, body)?),
            SERVICE_FLOW => Self::ServiceFlow(Box::new(service_record(body).ok_or_else(wrong)?)),
            SERVICE_END => Self::ServiceEnd(Box::new(service_key(body).ok_or_else(wrong)?)),
            SERVICE_FULL_END => Self::ServiceFullEnd(groups(kind, body)?),
            HAND_OVER => Self::HandOver(Box::new(hand_over(body).ok_or_else(wrong)?)),
            RECLAIM => Self::Reclaim(groups(kind, body)?),
            RECLAIM_ANSWER => empty().map(|()| Self::ReclaimAnswer)?,
            COOKIE_KEY => Self::CookieKey(cookie_key(body).ok_or_else(wrong)?),
            _ => return Ok(None),
        }))
    }
}

/// Start of a text of at most `limit` bytes.
fn truncated(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or_default()]
}

fn hello(body: &[u8]) -> Option<Result<Hello, WireError>> {
    let (magic, rest) = body.split_first_chunk()?;
    if *magic != MAGIC {
        return Some(Err(WireError::NotOurs));
    }
    let (protocol, rest) = rest.split_first_chunk()?;
    let ([slot, nodes], node) = rest.split_first_chunk()?;
    Some(match std::str::from_utf8(node) {
        Ok(node) if node.len() <= MAX_NODE_NAME_BYTES => Ok(Hello {
            protocol: u16::from_be_bytes(*protocol),
            slot: *slot,
            nodes: *nodes,
            node: node.to_owned(),
        }),
        _ => Err(WireError::Text(HELLO)),
    })
}

fn name(body: &[u8]) -> Option<Result<Name, WireError>> {
    let (number, text) = body.split_first_chunk()?;
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() <= MAX_NAME_BYTES && text.split('\0').count() <= MAX_NAME_PARTS);
    Some(text.ok_or(WireError::Text(NAME)).map(|text| Name {
        number: u32::from_be_bytes(*number),
        parts: text.split('\0').map(str::to_owned).collect(),
    }))
}

/// Appends names of groups, as far as a message has room for them.
fn put_groups(groups: &[String], out: &mut Vec<u8>) {
    let mut left = usize::from(u16::MAX);
    for group in groups {
        let Some(rest) = left.checked_sub(group.len() + 1) else {
            break;
        };
        left = rest;
        out.extend(group.bytes());
        out.push(0);
    }
}

fn groups(kind: u8, body: &[u8]) -> Result<Vec<String>, WireError> {
    let text = std::str::from_utf8(body).map_err(|_| WireError::Text(kind))?;
    Ok(text.split_terminator('\0').map(str::to_owned).collect())
}

fn put_hand_over(hand_over: &HandOver, out: &mut Vec<u8>) {
    out.extend(hand_over.seconds.to_be_bytes());
    for moved in hand_over.addresses.iter().take(MAX_HANDED_OVER) {
        out.extend(moved.address.iter().flat_map(|word| word.to_be_bytes()));
        out.extend(moved.mac);
    }
}

fn hand_over(body: &[u8]) -> Option<HandOver> {
    let (seconds, rest) = body.split_first_chunk()?;
    let (addresses, []) = rest.as_chunks::<MOVED_ADDRESS_BYTES>() else {
        return None;
    };
    let moved = |bytes: &[u8; MOVED_ADDRESS_BYTES]| {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        MovedAddress {
            address: [word(0), word(4), word(8), word(12)],
            mac: [bytes[16], bytes[17], bytes[18], bytes[19], bytes[20], bytes[21]],
        }
    };
    Some(HandOver {
        seconds: u16::from_be_bytes(*seconds),
        addresses: addresses.iter().map(moved).collect(),
    })
}

fn cookie_key(body: &[u8]) -> Option<SharedCookieKey> {
    let (numbers, []) = body.as_chunks::<8>() else {
        return None;
    };
    let [born, first, second, clock_ms] = *numbers else {
        return None;
    };
    Some(SharedCookieKey {
        born: u64::from_be_bytes(born),
        key: [u64::from_be_bytes(first), u64::from_be_bytes(second)],
        clock_ms: u64::from_be_bytes(clock_ms),
    })
}

/// Bits of a record's first byte: the parts that follow the constant part.
const HAS_IPV6: u8 = 1;
const HAS_LATE: u8 = 2;
/// Bits of a record's second byte: flags of the directions, in their own numbers from 16 on.
const FLAG_SHIFTS: [(usize, u32, u8); 3] = [
    (0, signalbox_common::cut::flow::TS_DELTA_KNOWN, 1),
    (0, signalbox_common::cut::flow::CUT_LATE, 2),
    (1, signalbox_common::cut::flow::TS_DELTA_UNKNOWN, 4),
];

const fn is_mapped(address: &[u32; 4]) -> bool {
    matches!(address, [0, 0, 0xffff, _])
}

fn put_record(record: &FlowRecord, out: &mut Vec<u8>) {
    let is_v6 = !record.addresses.iter().all(is_mapped);
    let is_late = record.late != [0; 2];
    let kinds = if is_v6 { HAS_IPV6 } else { 0 } | if is_late { HAS_LATE } else { 0 };
    let flags = FLAG_SHIFTS
        .iter()
        .filter(|(dir, flag, _)| record.flags[*dir] & flag != 0)
        .fold(0, |bits, (_, _, bit)| bits | bit);
    out.extend([kinds, flags]);
    out.extend(record.listener.to_be_bytes());
    out.extend(record.scales);
    let numbers = [record.index, record.age, record.host, record.route, record.clock_b];
    let all = numbers.iter().chain(&record.ports).chain(&record.deltas);
    out.extend(all.flat_map(|number| number.to_be_bytes()));
    let skip = if is_v6 { 0 } else { 3 };
    let words = record.addresses.iter().flat_map(|address| &address[skip..]);
    out.extend(words.flat_map(|word| word.to_be_bytes()));
    if is_late {
        out.extend(record.late.iter().flat_map(|number| number.to_be_bytes()));
    }
}

fn record(body: &[u8]) -> Option<FlowRecord> {
    let (&[kinds, bits, l0, l1, scale_a, scale_b], mut rest) = body.split_first_chunk()?;
    let mut number = || -> Option<u32> {
        let (number, more) = rest.split_first_chunk()?;
        rest = more;
        Some(u32::from_be_bytes(*number))
    };
    let mut record = FlowRecord {
        listener: u16::from_be_bytes([l0, l1]),
        scales: [scale_a, scale_b],
        index: number()?,
        age: number()?,
        host: number()?,
        route: number()?,
        clock_b: number()?,
        ports: [number()?, number()?],
        deltas: [number()?, number()?, number()?, number()?],
        ..FlowRecord::default()
    };
    for (dir, flag, bit) in FLAG_SHIFTS {
        if bits & bit != 0 {
            record.flags[dir] |= flag;
        }
    }
    for address in &mut record.addresses {
        *address = if kinds & HAS_IPV6 != 0 {
            [number()?, number()?, number()?, number()?]
        } else {
            [0, 0, 0xffff, number()?]
        };
    }
    if kinds & HAS_LATE != 0 {
        record.late = [number()?, number()?];
    }
    rest.is_empty().then_some(record)
}

/// Bits of a service record's second byte, by direction: the lower two are the client's.
const STATES: [(u16, u8); 2] = [
    (signalbox_common::l4::abi::state::FIN, 1),
    (signalbox_common::l4::abi::state::RST, 2),
];

/// Appends addresses after a byte that says how long they are.
fn put_addresses(addresses: &[[u32; 4]], out: &mut Vec<u8>) {
    let is_v6 = !addresses.iter().all(is_mapped);
    out.push(if is_v6 { HAS_IPV6 } else { 0 });
    let skip = if is_v6 { 0 } else { 3 };
    let words = addresses.iter().flat_map(|address| &address[skip..]);
    out.extend(words.flat_map(|word| word.to_be_bytes()));
}

fn put_service_record(record: &ServiceRecord, out: &mut Vec<u8>) {
    put_addresses(&record.addresses, out);
    let bits = (0..).zip(record.states).fold(0, |bits, (dir, state)| {
        let own = STATES.iter().filter(|(flag, _)| state & flag != 0);
        own.fold(bits, |bits, (_, bit)| bits | bit << (2 * dir))
    });
    out.push(bits);
    let [first, second] = record.ports;
    out.extend(
        [first, second, record.idle]
            .iter()
            .flat_map(|number| number.to_be_bytes()),
    );
}

/// Reader of numbers and addresses.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*number))
    }

    /// Reads addresses that [`put_addresses`] has written.
    fn addresses<const N: usize>(&mut self) -> Option<[[u32; 4]; N]> {
        let is_v6 = self.byte()? & HAS_IPV6 != 0;
        let mut addresses = [[0, 0, 0xffff, 0]; N];
        for address in &mut addresses {
            let skip = if is_v6 { 0 } else { 3 };
            for word in &mut address[skip..] {
                *word = self.number()?;
            }
        }
        Some(addresses)
    }
}

fn service_record(body: &[u8]) -> Option<ServiceRecord> {
    let mut words = Words(body);
    let addresses = words.addresses()?;
    let bits = words.byte()?;
    let state = |dir: u8| {
        let own = STATES.iter().filter(|(_, bit)| bits >> (2 * dir) & bit != 0);
        own.fold(0, |state, (flag, _)| state | flag)
    };
    let record = ServiceRecord {
        addresses,
        ports: [words.number()?, words.number()?],
        states: [state(0), state(1)],
        idle: words.number()?,
    };
    words.0.is_empty().then_some(record)
}

fn service_key(body: &[u8]) -> Option<Key> {
    let mut words = Words(body);
    let [source, destination] = words.addresses()?;
    let key = Key {
        source,
        destination,
        ports: words.number()?,
        protocol: TCP,
    };
    words.0.is_empty().then_some(key)
}

/// Decoder of a peer's messages: bytes come in pieces of any size.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that are decoded.
    done: usize,
    /// Messages of kinds that this version does not know.
    pub skipped: u64,
}

impl Decoder {
    /// Adds bytes of the peer. Less than one message of 64 KiB is kept, once all messages are taken.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.done);
        self.done = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message, or `None` where more bytes are needed.
    pub fn next_message(&mut self) -> Result<Option<Message>, WireError> {
        loop {
            let Some((&[kind, high, low], rest)) = self.bytes[self.done..].split_first_chunk() else {
                return Ok(None);
            };
            let Some(body) = rest.get(..usize::from(u16::from_be_bytes([high, low]))) else {
                return Ok(None);
            };
            self.done += HEADER_BYTES + body.len();
            match Message::decode(kind, body)? {
                Some(message) => return Ok(Some(message)),
                None => self.skipped += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests;
