//! A walk of one class's packets through one base chain, up to the first rule that would do something to them.

use std::collections::HashMap;

use super::class::PacketClass;
use super::form::{
    ChainBase, FilterRule, FilterTable, KeyValues, PacketHook, PacketKey, RuleStep, RuleVerdict, SetElements, SetRow,
};
use super::judge::{FilterReason, Found};
use super::values::{FieldValues, Truth};

/// Jumps that the kernel allows in a row.
const MAX_JUMPS: usize = 16;
/// Effect of a chain that translates addresses.
const TAKES_SOCKET: &str =
    "translation of addresses takes their socket, unless `net.netfilter.nf_conntrack_tcp_loose` is 0";
/// Most steps that are followed for a listener.
const MAX_STEPS: usize = 50_000_000;
/// Whether connection tracking has seen the packets of a base chain; `None`: that depends on the order of registration.
fn is_tracked(base: &ChainBase) -> Option<bool> {
    /// Priority of connection tracking (`NF_IP_PRI_CONNTRACK`).
    const TRACKING: i64 = -200;
    match (base.hook, base.priority) {
        (PacketHook::Ingress, _) => Some(false),
        (PacketHook::Prerouting | PacketHook::Output, priority) if priority <= TRACKING => {
            (priority < TRACKING).then_some(false)
        }
        _ => Some(true),
    }
}

/// How packets leave a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChainEnd {
    /// All are accepted.
    Accepted,
    /// Some may go on behind it.
    Through,
}

/// How packets leave a rule.
#[derive(PartialEq, Eq)]
enum RuleEnd {
    Accepted,
    Returned,
    Next,
}

/// A walk of one class's packets through one base chain.
pub(crate) struct Walk<'a, 's> {
    table: &'a FilterTable,
    class: &'s PacketClass,
    is_tracked: Option<bool>,
    /// Chains that have been followed.
    known: HashMap<&'a str, ChainEnd>,
    steps: &'s mut usize,
}

impl<'a, 's> Walk<'a, 's> {
    /// Follows a class through all base chains of a table, and counts the steps.
    pub(crate) fn through(table: &'a FilterTable, class: &'s PacketClass, steps: &'s mut usize) -> Found<()> {
        for (name, chain) in &table.chains {
            let Some(base) = chain.base else { continue };
            let takes_socket = base.is_nat && class.loses_socket();
            if !takes_socket && (!class.passes(base.hook) || base.is_nat && !class.is_first()) {
                continue;
            }
            let mut walk = Walk {
                table,
                class,
                is_tracked: is_tracked(&base),
                known: HashMap::new(),
                steps: &mut *steps,
            };
            if takes_socket {
                return Err(walk.reason(name, "", "type nat", TAKES_SOCKET));
            }
            if walk.chain(name, 0)? == ChainEnd::Through && base.drops {
                return Err(walk.reason(name, "policy", "policy drop", "drop"));
            }
        }
        Ok(())
    }

    fn chain(&mut self, name: &'a str, depth: usize) -> Found<ChainEnd> {
        if let Some(end) = self.known.get(name) {
            return Ok(*end);
        }
        let Some(chain) = self.table.chains.get(name) else {
            return Err(self.reason(name, "", "", "the chain is not known"));
        };
        if depth > MAX_JUMPS {
            return Err(self.reason(name, "", "", "too many jumps"));
        }
        let mut end = ChainEnd::Through;
        for rule in &chain.rules {
            match self.rule(name, rule, depth)? {
                RuleEnd::Next => {}
                RuleEnd::Returned => break,
                RuleEnd::Accepted => {
                    end = ChainEnd::Accepted;
                    break;
                }
            }
        }
        self.known.insert(name, end);
        Ok(end)
    }

    fn rule(&mut self, chain: &str, rule: &'a FilterRule, depth: usize) -> Found<RuleEnd> {
        let mut truth = Truth::Yes;
        for step in &rule.steps {
            *self.steps += 1;
            if *self.steps > MAX_STEPS {
                return Err(self.reason(chain, &rule.place, &rule.text, "there are too many rules"));
            }
            let effect = match step {
                RuleStep::Test { key, values, negated } => {
                    truth = truth.and(self.test(key, values, *negated));
                    None
                }
                RuleStep::Bits { key, mask, negated } => {
                    let values = self.values(key);
                    let is_absent = values == FieldValues::Absent;
                    truth = truth.and(values.have_bits(*mask).negated(*negated && !is_absent));
                    None
                }
                RuleStep::Maybe => {
                    truth = truth.and(Truth::Maybe);
                    None
                }
                RuleStep::Effect(effect) => Some(effect.as_str()),
                RuleStep::SetMark(key) => (self.values(key) != FieldValues::numbers([0])).then_some("sets a mark"),
                RuleStep::Masquerade => (!self.class.has_sole_address).then_some("masquerade"),
                RuleStep::Verdict(verdict) => return self.verdict((chain, rule), verdict, truth, depth),
                RuleStep::Map { key, values } => return self.map((chain, rule), (key, values), truth, depth),
            };
            if truth == Truth::No {
                return Ok(RuleEnd::Next);
            }
            if let Some(effect) = effect {
                return Err(self.reason_of((chain, rule), effect, truth));
            }
        }
        Ok(RuleEnd::Next)
    }

    fn verdict(
        &mut self,
        at: (&str, &FilterRule),
        verdict: &'a RuleVerdict,
        truth: Truth,
        depth: usize,
    ) -> Found<RuleEnd> {
        let end = match verdict {
            RuleVerdict::Drop => return Err(self.reason_of(at, "drop", truth)),
            RuleVerdict::Accept => RuleEnd::Accepted,
            RuleVerdict::Continue => RuleEnd::Next,
            RuleVerdict::Return => RuleEnd::Returned,
            RuleVerdict::Jump(to) => match self.chain(to, depth + 1)? {
                ChainEnd::Accepted => RuleEnd::Accepted,
                ChainEnd::Through => RuleEnd::Next,
            },
            RuleVerdict::Goto(to) => match self.chain(to, depth + 1)? {
                ChainEnd::Accepted => RuleEnd::Accepted,
                ChainEnd::Through => RuleEnd::Returned,
            },
        };
        Ok(if truth == Truth::Yes { end } else { RuleEnd::Next })
    }

    /// Follows all verdicts of a map that packets may get.
    fn map(
        &mut self,
        at: (&str, &FilterRule),
        (key, values): (&PacketKey, &'a KeyValues),
        truth: Truth,
        depth: usize,
    ) -> Found<RuleEnd> {
        let Some(elements) = self.elements(values) else {
            return Err(self.reason_of(at, "the map is not known", truth));
        };
        if elements.is_changing {
            return Err(self.reason_of(at, "packets or time change the map", truth));
        }
        let of_packets = self.tuple(key);
        for row in &elements.rows {
            *self.steps += 1;
            let of_row = truth.and(row_matches(key, &of_packets, row));
            let Some(verdict) = row.verdict.as_ref().filter(|_| of_row != Truth::No) else {
                continue;
            };
            let end = self.verdict(at, verdict, of_row, depth)?;
            if of_row == Truth::Yes {
                return Ok(end);
            }
        }
        Ok(RuleEnd::Next)
    }

    fn test(&mut self, key: &PacketKey, values: &KeyValues, negated: bool) -> Truth {
        let of_packets = self.tuple(key);
        if of_packets.contains(&FieldValues::Absent) {
            return Truth::No;
        }
        let Some(elements) = self.elements(values).filter(|elements| !elements.is_changing) else {
            return Truth::Maybe;
        };
        *self.steps += elements.rows.len();
        let rows = elements.rows.iter().map(|row| row_matches(key, &of_packets, row));
        let found = rows.max().unwrap_or(Truth::No);
        if negated && found == Truth::No && of_packets.contains(&FieldValues::Nameless) {
            return Truth::Maybe;
        }
        found.negated(negated)
    }

    fn elements(&self, values: &'a KeyValues) -> Option<&'a SetElements> {
        match values {
            KeyValues::These(elements) => Some(elements),
            KeyValues::Named(name) => self.table.sets.get(name).map(|elements| &**elements),
        }
    }

    fn values(&self, key: &PacketKey) -> FieldValues {
        match key {
            PacketKey::Field(field) => self.class.values(*field, self.is_tracked),
            PacketKey::Number(number) => FieldValues::numbers([*number]),
            PacketKey::Changed { of, and, xor } => self.values(of).changed(*and, *xor),
            PacketKey::Tuple(_) => FieldValues::Any,
        }
    }

    /// Values of each part of a key.
    fn tuple(&self, key: &PacketKey) -> Vec<FieldValues> {
        match key {
            PacketKey::Tuple(parts) => parts.iter().map(|part| self.values(part)).collect(),
            one => vec![self.values(one)],
        }
    }

    fn reason_of(&self, (chain, rule): (&str, &FilterRule), why: &str, truth: Truth) -> Box<FilterReason> {
        let is_sure = if truth == Truth::Yes {
            ""
        } else {
            ", for some of them or all"
        };
        let hint = if rule.is_opaque {
            "; only `iptables-nft-save` (package `iptables`) can show all of the rule"
        } else {
            ""
        };
        self.reason(chain, &rule.place, &rule.text, &format!("{why}{is_sure}{hint}"))
    }

    fn reason(&self, chain: &str, place: &str, text: &str, why: &str) -> Box<FilterReason> {
        let FilterTable { family, name, .. } = self.table;
        Box::new(FilterReason {
            place: format!("{family} {name} {chain} {place}").trim_end().to_owned(),
            text: text.to_owned(),
            class: self.class.name,
            why: why.to_owned(),
        })
    }
}

/// Whether a row of a set has the packets' values.
fn row_matches(key: &PacketKey, of_packets: &[FieldValues], row: &SetRow) -> Truth {
    if row.key.len() != of_packets.len() {
        return Truth::Maybe;
    }
    let parts: &[PacketKey] = match key {
        PacketKey::Tuple(parts) => parts,
        one => std::slice::from_ref(one),
    };
    let each = parts.iter().zip(of_packets).zip(&row.key);
    each.map(|((part, values), pattern)| {
        values.are_in(pattern, |word| match part {
            PacketKey::Field(field) => field.number_of(word),
            PacketKey::Changed { of, .. } => match **of {
                PacketKey::Field(field) => field.number_of(word),
                _ => None,
            },
            _ => None,
        })
    })
    .min()
    .unwrap_or(Truth::Maybe)
}
