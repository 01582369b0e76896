//! Sets of addresses and ports as `ipset save` shows them.

use std::collections::HashMap;
use std::sync::Arc;

use super::field::PacketField;
use super::form::{IpFamily, KeyValues, PacketKey, SetElements, SetRow};
use super::pattern::ValuePattern;
use super::save::port_range;

/// Part of a set's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetPart {
    Address,
    Port,
}

#[derive(Clone, Debug, Default)]
struct IpSet {
    parts: Vec<SetPart>,
    family: Option<IpFamily>,
    elements: Arc<SetElements>,
    may_expire: bool,
}

/// Sets by name. Those of which the kind or an element is not known are left out.
#[derive(Clone, Debug, Default)]
pub struct IpSets(HashMap<String, IpSet>);

impl IpSets {
    /// Reads all sets.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut sets: HashMap<&str, (IpSet, Vec<SetRow>)> = HashMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["create", name, kind, options @ ..] => {
                    if let Some(set) = created(kind, options) {
                        sets.insert(name, (set, Vec::new()));
                    }
                }
                ["add", name, element, options @ ..] => {
                    let Some((set, rows)) = sets.get_mut(name) else {
                        continue;
                    };
                    match row(&set.parts, element).filter(|_| !options.contains(&"nomatch")) {
                        Some(Some(row)) => rows.push(row),
                        Some(None) => {}
                        None => _ = sets.remove(name),
                    }
                }
                _ => {}
            }
        }
        let made = sets.into_iter().map(|(name, (set, rows))| {
            let elements = Arc::new(SetElements {
                may_expire: set.may_expire,
                ..SetElements::of(rows)
            });
            (name.to_owned(), IpSet { elements, ..set })
        });
        Self(made.collect())
    }

    /// Returns key and values of `--match-set NAME DIRECTIONS`; `None`: the set is not known.
    pub(super) fn test(&self, name: &str, directions: &str, of: IpFamily) -> Option<(PacketKey, KeyValues)> {
        let set = self
            .0
            .get(name)
            .filter(|set| set.family.is_none_or(|family| family == of))?;
        let mut directions = directions.split(',');
        let mut fields = Vec::new();
        for part in &set.parts {
            fields.push(PacketKey::Field(match (part, directions.next()?) {
                (SetPart::Address, "src") => PacketField::Source(of),
                (SetPart::Address, "dst") => PacketField::Destination(of),
                (SetPart::Port, "src") => PacketField::SourcePort,
                (SetPart::Port, "dst") => PacketField::DestinationPort,
                _ => return None,
            }));
        }
        let key = match fields.len() {
            1 => fields.pop()?,
            _ => PacketKey::Tuple(fields),
        };
        Some((key, KeyValues::These(Arc::clone(&set.elements))))
    }
}

fn created(kind: &str, options: &[&str]) -> Option<IpSet> {
    // An element stands for more addresses than it shows.
    let unknown = ["netmask", "bitmask", "markmask"];
    if options.iter().any(|option| unknown.contains(option)) {
        return None;
    }
    let (_, parts) = kind.split_once(':')?;
    let part = |name: &str| match name {
        "ip" | "net" => Some(SetPart::Address),
        "port" => Some(SetPart::Port),
        _ => None,
    };
    let family = options.iter().skip_while(|option| **option != "family").nth(1);
    Some(IpSet {
        parts: parts.split(',').map(part).collect::<Option<_>>()?,
        family: match family {
            Some(&"inet6") => Some(IpFamily::V6),
            Some(_) => Some(IpFamily::V4),
            None => None,
        },
        elements: Arc::default(),
        may_expire: options.contains(&"timeout"),
    })
}

/// Row of an element; `Some(None)`: it is not about TCP. `None`: it is not understood.
fn row(parts: &[SetPart], element: &str) -> Option<Option<SetRow>> {
    let words: Vec<&str> = element.split(',').collect();
    if words.len() != parts.len() {
        return None;
    }
    let mut key = Vec::new();
    for (part, word) in parts.iter().zip(words) {
        key.push(match part {
            SetPart::Address => ValuePattern::address(word)?,
            SetPart::Port => match word.split_once(':') {
                None => port_range(word)?,
                Some(("tcp", ports)) => port_range(ports)?,
                Some(("udp" | "sctp" | "udplite" | "dccp" | "icmp" | "icmpv6", _)) => return Some(None),
                Some(_) => return None,
            },
        });
    }
    Some(Some(SetRow { key, verdict: None }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_which_not_all_is_understood_are_left_out() {
        let text = "create ports bitmap:port range 0-65535\nadd ports 80\n\
                    create web hash:ip,port family inet\nadd web 10.0.0.1,tcp:80\nadd web 10.0.0.2,udp:53\n\
                    create timed hash:ip family inet timeout 60\ncreate wide hash:ip family inet netmask 24\n\
                    create odd hash:net family inet\nadd odd 10.0.0.0/8 nomatch\n\
                    create names list:set size 8\ncreate six hash:net family inet6\n";
        let sets = IpSets::parse(text);
        let known = |name: &str, directions: &str| sets.test(name, directions, IpFamily::V4).is_some();
        assert!(known("ports", "dst") && known("web", "dst,dst"));
        let timed = sets.test("timed", "src", IpFamily::V4);
        assert!(matches!(timed, Some((_, KeyValues::These(elements))) if elements.may_expire));
        for unknown in ["wide", "odd", "names", "six", "none"] {
            assert!(!known(unknown, "src"), "{unknown}");
        }
        let (_, values) = sets.test("web", "dst,dst", IpFamily::V4).unwrap();
        let KeyValues::These(elements) = values else { panic!() };
        assert_eq!(elements.rows.len(), 1, "the one of UDP is none of ours");
    }
}
