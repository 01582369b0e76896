//! Statements of rules.

use serde_json::Value;

use super::elements;
use super::operand::{bits, key, single};
use crate::firewall::field::PacketField;
use crate::firewall::form::{KeyValues, PacketKey, RuleStep, RuleVerdict, SetElements};
use crate::firewall::pattern::ValuePattern;
use crate::firewall::save::PURE_MATCHES;

/// Steps of a statement: none if it changes nothing.
pub(super) fn steps(statement: &Value) -> Option<RuleStep> {
    let unknown = || Some(RuleStep::Effect(format!("not understood: {statement:.80}")));
    let Some((kind, inner)) = single(statement) else {
        return unknown();
    };
    match kind {
        "match" => Some(comparison(inner).unwrap_or(RuleStep::Maybe)),
        // A map chooses the counter: packets that the map lacks leave the rule.
        "counter" if !is_one_counter(inner) => Some(RuleStep::Maybe),
        // Counted or logged, which changes no packet.
        "counter" | "log" | "last" => None,
        "limit" | "quota" | "ct count" => Some(RuleStep::Maybe),
        "vmap" => verdict_map(inner).or_else(unknown),
        "mangle" => match inner.get("key").map(key) {
            Some(PacketKey::Field(PacketField::Mark | PacketField::ConnectionMark)) => {
                Some(RuleStep::SetMark(key(&inner["value"])))
            }
            _ if is_segment_size(inner) => None,
            _ => Some(RuleStep::Effect("changes the packet".to_owned())),
        },
        "masquerade" if inner.is_null() => Some(RuleStep::Masquerade),
        "set" | "map" | "meter" => Some(RuleStep::Effect("changes a set".to_owned())),
        "xt" => opaque(inner),
        "reject" | "dnat" | "snat" | "masquerade" | "redirect" | "tproxy" | "queue" | "notrack" | "synproxy"
        | "dup" | "fwd" | "flow" | "ct helper" | "ct timeout" | "ct expectation" | "secmark" => {
            Some(RuleStep::Effect(kind.to_owned()))
        }
        _ => verdict(statement).map(RuleStep::Verdict).or_else(unknown),
    }
}

pub(super) fn verdict(value: &Value) -> Option<RuleVerdict> {
    let (kind, inner) = single(value)?;
    let target = || inner.get("target")?.as_str().map(str::to_owned);
    match kind {
        "accept" => Some(RuleVerdict::Accept),
        "drop" => Some(RuleVerdict::Drop),
        "continue" => Some(RuleVerdict::Continue),
        "return" => Some(RuleVerdict::Return),
        "jump" => target().map(RuleVerdict::Jump),
        "goto" => target().map(RuleVerdict::Goto),
        _ => None,
    }
}

/// Sets that a rule's statements change.
pub(super) fn changed_sets(statements: &Value) -> impl Iterator<Item = String> {
    let all = statements.as_array().into_iter().flatten();
    let changing = all.filter_map(|statement| match single(statement)? {
        ("set" | "map", inner) => inner.get("set").or_else(|| inner.get("map"))?.as_str(),
        ("meter", inner) => inner.get("name")?.as_str(),
        _ => None,
    });
    changing.map(|name| name.trim_start_matches('@').to_owned())
}

/// Whether a counter is the rule's own, or has a name.
fn is_one_counter(inner: &Value) -> bool {
    let is_number = |(name, _): (&String, &Value)| matches!(name.as_str(), "packets" | "bytes");
    inner.as_object().is_none_or(|counter| counter.iter().all(is_number))
}

/// Whether the size of TCP segments is changed to fit the path, within whose MTU the programs keep it themselves.
fn is_segment_size(mangle: &Value) -> bool {
    let option = mangle.get("key").and_then(|key| key.get("tcp option"));
    let is_of_path = mangle.get("value").and_then(|value| value.get("rt")).is_some();
    is_of_path && option.and_then(|option| option.get("name")).and_then(Value::as_str) == Some("maxseg")
}

/// Match or target of iptables of which nft shows the name at most.
fn opaque(inner: &Value) -> Option<RuleStep> {
    let name = inner
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or("a match or target of iptables");
    match inner.get("type").and_then(Value::as_str) {
        Some("match") if name == "comment" => None,
        Some("match") if PURE_MATCHES.contains(&name) => Some(RuleStep::Maybe),
        _ => Some(RuleStep::Effect(format!("{name} is not understood"))),
    }
}

fn verdict_map(inner: &Value) -> Option<RuleStep> {
    let data = inner.get("data")?;
    let values = match data.as_str().and_then(|name| name.strip_prefix('@')) {
        Some(name) => KeyValues::Named(name.to_owned()),
        None => KeyValues::of(elements::of_map(data.get("set")?.as_array()?)),
    };
    Some(RuleStep::Map {
        key: key(inner.get("key")?),
        values,
    })
}

/// A comparison. `None`: whether it holds is not known.
fn comparison(inner: &Value) -> Option<RuleStep> {
    let op = inner.get("op")?.as_str()?;
    let (left, right) = (inner.get("left")?, inner.get("right")?);
    let key = key(left);
    let test = |values, negated| {
        Some(RuleStep::Test {
            key: key.clone(),
            values,
            negated,
        })
    };
    if let ("==" | "!=" | "in", Some(name)) = (op, right.as_str().and_then(|word| word.strip_prefix('@'))) {
        return test(KeyValues::Named(name.to_owned()), op == "!=");
    }
    if let ("==" | "!=" | "in", Some(elements)) = (op, right.get("set")) {
        return test(KeyValues::of(elements::of_values(elements)), op == "!=");
    }
    let field = match &key {
        PacketKey::Field(field) => *field,
        PacketKey::Changed { of, .. } => match **of {
            PacketKey::Field(field) => field,
            _ => return None,
        },
        PacketKey::Tuple(_) if op == "==" => return test(KeyValues::of(elements::of_values(right)), false),
        _ => return None,
    };
    let are_bits = matches!(
        field,
        PacketField::TcpFlags | PacketField::ConnectionState | PacketField::ConnectionStatus
    );
    match op {
        "in" if are_bits => Some(RuleStep::Bits {
            mask: bits(right, field)?,
            key,
            negated: false,
        }),
        // Several words are bits of one value; without a mask, versions of nft differ about them.
        "==" | "!=" if right.is_array() || right.get("|").is_some() => match key {
            PacketKey::Changed { .. } if are_bits => {
                let bits = bits(right, field)?;
                let one = SetElements::one(ValuePattern::range(bits, bits));
                test(KeyValues::of(one), op == "!=")
            }
            _ => None,
        },
        "==" | "!=" => test(KeyValues::of(elements::of_values(right)), op == "!="),
        "<" | "<=" | ">" | ">=" => {
            let number = u128::from(right.as_u64()?);
            let range = match op {
                "<" => ValuePattern::range(0, number.checked_sub(1)?),
                "<=" => ValuePattern::range(0, number),
                ">" => ValuePattern::range(number + 1, u128::MAX),
                _ => ValuePattern::range(number, u128::MAX),
            };
            test(KeyValues::of(SetElements::one(range)), false)
        }
        _ => None,
    }
}
