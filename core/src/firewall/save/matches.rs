//! Conditions of a rule.

use super::tokens::RuleWords;
use crate::firewall::field::PacketField;
use crate::firewall::form::{IpFamily, KeyValues, PacketKey, RuleStep, SetElements};
use crate::firewall::ipset::IpSets;
use crate::firewall::pattern::ValuePattern;

/// Extensions that only match, and of which it is not known for which packets.
pub(crate) const PURE_MATCHES: [&str; 34] = [
    "bpf",
    "cgroup",
    "cluster",
    "connbytes",
    "connlimit",
    "cpu",
    "devgroup",
    "dscp",
    "ecn",
    "eui64",
    "hashlimit",
    "helper",
    "hl",
    "ipv6header",
    "ipvs",
    "length",
    "limit",
    "mac",
    "nfacct",
    "osf",
    "owner",
    "physdev",
    "policy",
    "quota",
    "rateest",
    "realm",
    "rpfilter",
    "socket",
    "statistic",
    "string",
    "tcpmss",
    "time",
    "tos",
    "ttl",
];

/// Extensions that match packets with headers that ours lack.
const FOREIGN_MATCHES: [&str; 7] = ["ah", "dst", "esp", "frag", "hbh", "mh", "rt"];

/// Extensions whose options are read below, at least in part.
const KNOWN_MATCHES: [&str; 18] = [
    "addrtype",
    "comment",
    "connmark",
    "conntrack",
    "dccp",
    "icmp",
    "icmp6",
    "icmpv6",
    "iprange",
    "mark",
    "multiport",
    "pkttype",
    "sctp",
    "set",
    "state",
    "tcp",
    "udp",
    "udplite",
];

/// Options that change something, by which a condition is more than one.
const CHANGING_OPTIONS: [&str; 3] = ["--restore-skmark", "--update-counters", "--update-subcounters"];

/// Reads the conditions, up to the target.
pub(super) fn read(tokens: &mut RuleWords, of: IpFamily, sets: &IpSets, steps: &mut Vec<RuleStep>) {
    let by_interface = tokens.have_any(&["--limit-iface-in", "--limit-iface-out"]);
    if tokens.have_any(&CHANGING_OPTIONS) {
        steps.push(RuleStep::Effect("a match that changes something".to_owned()));
    }
    let (mut negated, mut module) = (false, String::new());
    while let Some(option) = tokens.peek().map(str::to_owned) {
        match option.as_str() {
            "-j" | "-g" => return,
            "!" => {
                negated = true;
                tokens.take();
                continue;
            }
            "-m" => {
                tokens.take();
                let name = tokens.take().unwrap_or_default();
                if PURE_MATCHES.contains(&name.as_str()) {
                    steps.push(RuleStep::Maybe);
                } else if FOREIGN_MATCHES.contains(&name.as_str()) {
                    steps.push(RuleStep::Bits {
                        key: PacketKey::Field(PacketField::Foreign),
                        mask: 1,
                        negated: false,
                    });
                } else if !KNOWN_MATCHES.contains(&name.as_str()) {
                    steps.push(RuleStep::Effect(format!("match {name} is not understood")));
                }
                module = name;
            }
            "--comment" => {
                tokens.take();
                tokens.take();
            }
            "-f" => {
                tokens.take();
                steps.push(RuleStep::Bits {
                    key: PacketKey::Field(PacketField::FragmentBits),
                    mask: 0x1fff,
                    negated,
                });
            }
            _ => {
                tokens.take();
                let arguments = tokens.arguments();
                let is_addrtype = matches!(option.as_str(), "--src-type" | "--dst-type");
                let step = if option == "--mark" {
                    of_mark(&module, &arguments, negated)
                } else {
                    condition(&option, &arguments, negated, of, sets)
                };
                steps.push(
                    step.filter(|_| !(is_addrtype && by_interface))
                        .unwrap_or(RuleStep::Maybe),
                );
            }
        }
        negated = false;
    }
}

/// A condition; `None`: it is not known when it holds.
fn condition(option: &str, arguments: &[String], negated: bool, of: IpFamily, sets: &IpSets) -> Option<RuleStep> {
    let value = arguments.first()?.as_str();
    let test = |key, pattern| {
        let values = KeyValues::of(SetElements::one(pattern));
        Some(RuleStep::Test { key, values, negated })
    };
    let field = PacketKey::Field;
    let words = |of: PacketField| test(field(of), each(value, |word| of.number_of(word)));
    match (option, arguments.len()) {
        ("-s", 1) => test(field(PacketField::Source(of)), ValuePattern::address(value)?),
        ("-d", 1) => test(field(PacketField::Destination(of)), ValuePattern::address(value)?),
        ("--src-range", 1) => test(field(PacketField::Source(of)), ValuePattern::address(value)?),
        ("--dst-range", 1) => test(field(PacketField::Destination(of)), ValuePattern::address(value)?),
        ("-i", 1) => test(field(PacketField::InInterface), interface(value)),
        ("-o", 1) => test(field(PacketField::OutInterface), interface(value)),
        ("-p", 1) if value != "all" && value != "0" => {
            let of = PacketField::Protocol(None);
            let protocol = number(value).or_else(|| of.number_of(value))?;
            test(field(of), ValuePattern::range(protocol, protocol))
        }
        ("--sport" | "--sports", 1) => test(field(PacketField::SourcePort), ports(value)),
        ("--dport" | "--dports", 1) => test(field(PacketField::DestinationPort), ports(value)),
        ("--tcp-flags", 2) => {
            let compared = all_bits(arguments.get(1)?, PacketField::TcpFlags)?;
            let key = PacketKey::Changed {
                of: Box::new(field(PacketField::TcpFlags)),
                and: all_bits(value, PacketField::TcpFlags)?,
                xor: 0,
            };
            test(key, ValuePattern::range(compared, compared))
        }
        ("--state" | "--ctstate", 1) => Some(RuleStep::Bits {
            key: field(PacketField::ConnectionState),
            mask: all_bits(value, PacketField::ConnectionState)?,
            negated,
        }),
        ("--ctdir", 1) => words(PacketField::ConnectionDirection),
        // For IPv6, other types than this are no types of routes: `UNICAST` has `LOCAL` within.
        ("--dst-type" | "--src-type", 1) if of == IpFamily::V6 && value != "LOCAL" => None,
        ("--dst-type", 1) => words(PacketField::DestinationType),
        ("--src-type", 1) => words(PacketField::SourceType),
        ("--pkt-type", 1) => words(PacketField::PacketType),
        ("--match-set", 2) => {
            let (key, values) = sets.test(value, arguments.get(1)?, of)?;
            Some(RuleStep::Test { key, values, negated })
        }
        _ => None,
    }
}

/// `--mark VALUE/MASK` of packets, or of connections.
fn of_mark(module: &str, arguments: &[String], negated: bool) -> Option<RuleStep> {
    let field = match module {
        "mark" => PacketField::Mark,
        "connmark" => PacketField::ConnectionMark,
        _ => return None,
    };
    let value = arguments.first()?.as_str();
    let (wanted, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
    let wanted = number(wanted)?;
    Some(RuleStep::Test {
        key: PacketKey::Changed {
            of: Box::new(PacketKey::Field(field)),
            and: number(mask)?,
            xor: 0,
        },
        values: KeyValues::of(SetElements::one(ValuePattern::range(wanted, wanted))),
        negated,
    })
}

/// Reads a number, in hexadecimal with `0x`.
pub(super) fn number(text: &str) -> Option<u128> {
    match text.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Values between commas.
fn each(list: &str, number_of: impl Fn(&str) -> Option<u128>) -> ValuePattern {
    let of_word =
        |word| number_of(word).map_or_else(ValuePattern::unknown, |number| ValuePattern::range(number, number));
    ValuePattern::union(list.split(',').map(of_word))
}

fn all_bits(list: &str, of: PacketField) -> Option<u128> {
    list.split(',').try_fold(0, |all, word| Some(all | of.number_of(word)?))
}

fn interface(name: &str) -> ValuePattern {
    ValuePattern {
        names: vec![
            name.strip_suffix('+')
                .map_or_else(|| name.to_owned(), |start| format!("{start}*")),
        ],
        ..ValuePattern::default()
    }
}

fn ports(list: &str) -> ValuePattern {
    ValuePattern::union(
        list.split(',')
            .map(|ports| port_range(ports).unwrap_or_else(ValuePattern::unknown)),
    )
}

/// `80`, or `80:90`.
pub(crate) fn port_range(ports: &str) -> Option<ValuePattern> {
    let (first, last) = ports.split_once([':', '-']).unwrap_or((ports, ports));
    let first = if first.is_empty() { 0 } else { number(first)? };
    let last = if last.is_empty() { 0xffff } else { number(last)? };
    Some(ValuePattern::range(first, last))
}
