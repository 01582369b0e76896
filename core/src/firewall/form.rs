//! Rules of all programs in one form: tables, chains, and the steps of rules.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::field::PacketField;
use super::pattern::ValuePattern;

/// All that decides on packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterRuleset {
    /// Tables of all programs.
    pub tables: Vec<FilterTable>,
    /// Virtual services of IPVS.
    pub virtual_services: Vec<SocketAddr>,
}

/// Address family of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A table with its chains and sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterTable {
    /// As the user names it: `ip`, `ip6`, `inet`, `netdev`. With the program, if it is not nftables.
    pub(crate) family: String,
    /// Family of the packets; `None`: both.
    pub(crate) of: Option<IpFamily>,
    pub(crate) name: String,
    pub(crate) chains: BTreeMap<String, FilterChain>,
    /// Sets and maps by name.
    pub(crate) sets: BTreeMap<String, Arc<SetElements>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterChain {
    /// Where packets enter it; `None`: only by jumps.
    pub(crate) base: Option<ChainBase>,
    pub(crate) rules: Vec<FilterRule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainBase {
    pub(crate) hook: PacketHook,
    pub(crate) priority: i64,
    /// Whether it sees only the first packet of a connection.
    pub(crate) is_nat: bool,
    /// Whether its policy drops.
    pub(crate) drops: bool,
}

/// Hook of the kernel at which chains are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PacketHook {
    Ingress,
    Prerouting,
    Input,
    /// Packets that pass through are none of ours.
    Forward,
    Output,
    Postrouting,
    Egress,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilterRule {
    /// `handle 4`, or `rule 4`.
    pub(crate) place: String,
    pub(crate) text: String,
    pub(crate) steps: Vec<RuleStep>,
    /// Whether a part is shown by `iptables-save` alone.
    pub(crate) is_opaque: bool,
}

/// Part of a rule. Parts are handled in order, until one does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleStep {
    /// The values of a field are compared.
    Test {
        key: PacketKey,
        values: KeyValues,
        negated: bool,
    },
    /// A packet has one of these bits set.
    Bits {
        key: PacketKey,
        mask: u128,
        negated: bool,
    },
    /// Whether it matches is not known.
    Maybe,
    /// Something is done that those who bypass the rule would miss.
    Effect(String),
    /// The packet's or the connection's mark becomes this.
    SetMark(PacketKey),
    /// The source address becomes that of the interface.
    Masquerade,
    Verdict(RuleVerdict),
    /// A verdict is looked up.
    Map {
        key: PacketKey,
        values: KeyValues,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RuleVerdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
}

/// Part of a packet that a rule reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PacketKey {
    Field(PacketField),
    Number(u128),
    /// `(value & and) ^ xor`.
    Changed {
        of: Box<Self>,
        and: u128,
        xor: u128,
    },
    /// Several, one after the other.
    Tuple(Vec<Self>),
}

/// Values to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyValues {
    These(Arc<SetElements>),
    /// Elements of a set or map of the table.
    Named(String),
}

/// Elements of a set or map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetElements {
    pub(crate) rows: Vec<SetRow>,
    /// Whether packets change it: nothing is known of its elements.
    pub(crate) is_changing: bool,
    /// Whether time removes elements.
    pub(crate) may_expire: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetRow {
    /// Values of each part of the key.
    pub(crate) key: Vec<ValuePattern>,
    pub(crate) verdict: Option<RuleVerdict>,
}

impl SetElements {
    /// Returns a set with one value, or one range of them.
    #[must_use]
    pub(crate) fn one(pattern: ValuePattern) -> Self {
        Self::of(vec![SetRow {
            key: vec![pattern],
            verdict: None,
        }])
    }

    /// Returns a set with these rows. Those of single values without verdicts become one.
    #[must_use]
    pub(crate) fn of(rows: Vec<SetRow>) -> Self {
        let is_plain = |row: &SetRow| row.key.len() == 1 && row.verdict.is_none();
        if rows.len() < 2 || !rows.iter().all(is_plain) {
            return Self {
                rows,
                ..Self::default()
            };
        }
        Self::one(ValuePattern::union(rows.into_iter().flat_map(|row| row.key)))
    }
}

impl KeyValues {
    #[must_use]
    pub(crate) fn of(elements: SetElements) -> Self {
        Self::These(Arc::new(elements))
    }
}
