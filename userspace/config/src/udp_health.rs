//! Health checks by UDP.

use signalbox_core::model::{UdpProbe, UdpQuestion};
use signalbox_core::wire::hostname::Hostname;

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};

/// Most bytes of a datagram: it passes every network in one packet.
const MAX_PAYLOAD: usize = 1200;

/// Decodes `udp` of a health check; `None` for mistakes.
pub(super) fn probe(place: &NodeRef<'_>, report: &mut Report) -> Option<UdpProbe> {
    let mut map = MapDecoder::open(place, report)?;
    let (port, send, expect) = (map.take("port"), map.take("send"), map.take("expect"));
    let (dns, quic) = (map.take("dns"), map.take("quic"));
    map.finish(report);

    let port = port.and_then(|place| place.port(report));
    let is_quic = quic.as_ref().and_then(|place| place.flag(report)).unwrap_or(false);
    let ways = [send.is_some(), dns.is_some(), is_quic];
    if ways.into_iter().filter(|&way| way).count() != 1 {
        place.error(
            report,
            "a UDP check needs exactly one of `send`, `dns` and `quic: true`, which define the datagram",
        );
        return None;
    }
    if let (Some(expect), None) = (&expect, &send) {
        expect.error(
            report,
            "`expect` needs `send`: the right answers to `dns` and `quic` are known",
        );
        return None;
    }
    let question = match (send, dns) {
        (Some(send), _) => UdpQuestion::Payload {
            send: bytes(&send, report)?,
            expect: match expect {
                Some(expect) => bytes(&expect, report)?,
                None => Vec::new(),
            },
        },
        (None, Some(dns)) => UdpQuestion::Dns {
            name: name(&dns, report)?,
        },
        (None, None) => UdpQuestion::Quic,
    };
    Some(UdpProbe { port, question })
}

/// Decodes bytes: text, or `hex:` and digits.
fn bytes(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<u8>> {
    let text = place.text(report)?;
    let decoded = match text.strip_prefix("hex:") {
        Some(digits) => from_hex(digits),
        None => Some(text.as_bytes().to_vec()),
    };
    match decoded {
        Some(bytes) if (1..=MAX_PAYLOAD).contains(&bytes.len()) => Some(bytes),
        Some(_) => {
            place.error(
                report,
                format!("the datagram of a check must have 1 to {MAX_PAYLOAD} bytes"),
            );
            None
        }
        None => {
            let shown = quote(text);
            place.error(
                report,
                format!("{shown}: write pairs of hexadecimal digits after `hex:`, such as hex:00ff"),
            );
            None
        }
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = digits
        .chars()
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let pairs = digits?;
    let pairs = pairs.chunks(2).map(|pair| Some(pair[0] << 4 | *pair.get(1)?));
    pairs.collect()
}

fn name(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    match Hostname::parse(text.as_bytes()) {
        Ok(name) => Some(name.as_str().to_owned()),
        Err(error) => {
            place.error(report, format!("{} is not a name to query: {error}", quote(text)));
            None
        }
    }
}
