//! Parts of packets that rules read.

use serde_json::Value;

use crate::firewall::field::PacketField;
use crate::firewall::form::{IpFamily, PacketKey};

/// Reads the left side of a comparison, or the key of a map.
pub(super) fn key(value: &Value) -> PacketKey {
    known_key(value).unwrap_or(PacketKey::Field(PacketField::Unknown))
}

fn known_key(value: &Value) -> Option<PacketKey> {
    if let Some(number) = value.as_u64() {
        return Some(PacketKey::Number(number.into()));
    }
    let (kind, inner) = single(value)?;
    let word = |name: &str| inner.get(name).and_then(Value::as_str);
    let field = match kind {
        "payload" => payload(word("protocol")?, word("field")?),
        "meta" => meta(word("key")?),
        "ct" if inner.get("dir").is_none() => tracking(word("key")?),
        "fib" => address_type(inner)?,
        "concat" => return Some(PacketKey::Tuple(inner.as_array()?.iter().map(key).collect())),
        "&" | "|" | "^" => return changed(kind, inner),
        _ => return None,
    };
    Some(PacketKey::Field(field))
}

/// The only member of an object.
pub(super) fn single(value: &Value) -> Option<(&str, &Value)> {
    let fields = value.as_object()?;
    let (key, inner) = fields.iter().next()?;
    (fields.len() == 1).then_some((key.as_str(), inner))
}

fn changed(kind: &str, operands: &Value) -> Option<PacketKey> {
    let [of, by] = operands.as_array()?.as_slice() else {
        return None;
    };
    let of = key(of);
    let read = match &of {
        PacketKey::Field(field) => *field,
        PacketKey::Changed { of, .. } => match **of {
            PacketKey::Field(field) => field,
            _ => return None,
        },
        _ => return None,
    };
    let bits = bits(by, read)?;
    let (and, xor) = match kind {
        "&" => (bits, 0),
        "|" => (!bits, bits),
        _ => (u128::MAX, bits),
    };
    Some(PacketKey::Changed {
        of: Box::new(of),
        and,
        xor,
    })
}

/// Bits of a constant: a number, a word of the field, or several of them.
pub(super) fn bits(value: &Value, of: PacketField) -> Option<u128> {
    match value {
        Value::Number(number) => number.as_u64().map(u128::from),
        Value::String(word) => of.number_of(word),
        Value::Array(parts) => parts.iter().try_fold(0, |all, part| Some(all | bits(part, of)?)),
        Value::Object(_) => match single(value)? {
            ("|", parts) => bits(parts, of),
            _ => None,
        },
        _ => None,
    }
}

fn payload(protocol: &str, field: &str) -> PacketField {
    use IpFamily::{V4, V6};
    match (protocol, field) {
        ("ip", "saddr") => PacketField::Source(V4),
        ("ip6", "saddr") => PacketField::Source(V6),
        ("ip", "daddr") => PacketField::Destination(V4),
        ("ip6", "daddr") => PacketField::Destination(V6),
        ("ip", "protocol") => PacketField::Protocol(Some(V4)),
        ("ip6", "nexthdr") => PacketField::Protocol(Some(V6)),
        ("ip", "frag-off") => PacketField::FragmentBits,
        ("ip", _) => PacketField::Other(V4),
        ("ip6", _) => PacketField::Other(V6),
        ("tcp" | "th", "sport") => PacketField::SourcePort,
        ("tcp" | "th", "dport") => PacketField::DestinationPort,
        ("tcp", "flags") => PacketField::TcpFlags,
        // A rule that reads these headers matches packets with them alone.
        ("udp" | "udplite" | "sctp" | "dccp" | "icmp" | "icmpv6" | "igmp" | "esp" | "ah" | "comp", _) => {
            PacketField::Foreign
        }
        _ => PacketField::Unknown,
    }
}

fn meta(key: &str) -> PacketField {
    match key {
        "l4proto" => PacketField::Protocol(None),
        "nfproto" => PacketField::Family,
        "protocol" => PacketField::EtherType,
        "iifname" | "iif" => PacketField::InInterface,
        "oifname" | "oif" => PacketField::OutInterface,
        "mark" => PacketField::Mark,
        "pkttype" => PacketField::PacketType,
        _ => PacketField::Unknown,
    }
}

fn tracking(key: &str) -> PacketField {
    match key {
        "state" => PacketField::ConnectionState,
        "mark" => PacketField::ConnectionMark,
        "status" => PacketField::ConnectionStatus,
        "direction" => PacketField::ConnectionDirection,
        _ => PacketField::Unknown,
    }
}

/// The type of an address, by all interfaces.
fn address_type(fib: &Value) -> Option<PacketField> {
    if fib.get("result")?.as_str()? != "type" {
        return None;
    }
    let flags = fib.get("flags")?;
    let only = match flags.as_array() {
        Some(flags) if flags.len() == 1 => flags.first()?,
        Some(_) => return None,
        None => flags,
    };
    match only.as_str()? {
        "daddr" => Some(PacketField::DestinationType),
        "saddr" => Some(PacketField::SourceType),
        _ => None,
    }
}
