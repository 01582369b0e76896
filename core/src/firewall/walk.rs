//! A walk of one class's packets through one base chain, up to the first rule that would do something to them.

use std::collections::HashMap;

use super::class::{PacketClass, PacketPlace};
use super::form::{
    ChainBase, FilterRule, FilterTable, KeyValues, PacketHook, PacketKey, RuleStep, RuleVerdict, SetElements, SetRow,
};
use super::judge::{FilterReason, Found};
use super::pattern::NumberRanges;
use super::values::{FieldValues, Truth};

/// Jumps that the kernel allows in a row.
const MAX_JUMPS: usize = 16;
/// Most steps that are followed for a listener: about a second.
const MAX_STEPS: usize = 10_000_000;

/// Whether connection tracking has seen the packets of a base chain; `None`: that depends on the order of registration,
/// or on whether others track connections.
fn is_tracked(base: &ChainBase) -> Option<bool> {
    /// Priority of connection tracking (`NF_IP_PRI_CONNTRACK`).
    const TRACKING: i64 = -200;
    match (base.hook, base.priority) {
        (PacketHook::Ingress, _) => Some(false),
        (PacketHook::Egress, _) => None,
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
    /// Some may go on after it.
    Through,
}

/// How packets leave a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleEnd {
    Accepted,
    Returned,
    /// Some may leave the chain, and others go on to the next rule.
    MayReturn,
    Next,
}

impl RuleEnd {
    /// Returns how packets leave a rule that has this end for some of them, or for none.
    const fn for_some(self) -> Self {
        match self {
            Self::Accepted | Self::Next => Self::Next,
            Self::Returned | Self::MayReturn => Self::MayReturn,
        }
    }

    /// Returns how packets leave a rule if some may have had another end before.
    const fn after(self, before: Self) -> Self {
        match before {
            Self::MayReturn => Self::MayReturn,
            _ => self,
        }
    }
}

/// Results that walks of a listener's packets share.
#[derive(Default)]
pub(crate) struct WalkNotes {
    steps: usize,
    /// Addresses of the last condition that some clients of a class meet, and others do not.
    pub(crate) some_clients: Option<NumberRanges>,
}

/// A walk of one class's packets through one base chain.
pub(crate) struct Walk<'a, 's> {
    table: &'a FilterTable,
    class: &'s PacketClass,
    place: PacketPlace,
    /// Chains that have been followed.
    known: HashMap<&'a str, ChainEnd>,
    notes: &'s mut WalkNotes,
}

impl<'a, 's> Walk<'a, 's> {
    /// Follows a class through all base chains of a table.
    pub(crate) fn through(table: &'a FilterTable, class: &'s PacketClass, notes: &'s mut WalkNotes) -> Found<()> {
        for (name, chain) in &table.chains {
            let Some(base) = chain.base else { continue };
            if !class.passes(base.hook) || base.is_nat && !class.is_first() {
                continue;
            }
            let mut walk = Walk {
                table,
                class,
                place: PacketPlace {
                    hook: base.hook,
                    is_tracked: is_tracked(&base),
                },
                known: HashMap::new(),
                notes: &mut *notes,
            };
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
        let (mut end, mut some_return) = (ChainEnd::Through, false);
        for rule in &chain.rules {
            match self.rule(name, rule, depth)? {
                RuleEnd::Next => {}
                RuleEnd::MayReturn => some_return = true,
                RuleEnd::Returned => break,
                RuleEnd::Accepted => {
                    if !some_return {
                        end = ChainEnd::Accepted;
                    }
                    break;
                }
            }
        }
        self.known.insert(name, end);
        Ok(end)
    }

    fn rule(&mut self, chain: &str, rule: &'a FilterRule, depth: usize) -> Found<RuleEnd> {
        let (mut truth, mut before) = (Truth::Yes, RuleEnd::Next);
        for step in &rule.steps {
            self.notes.steps += 1;
            if self.notes.steps > MAX_STEPS {
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
                // The rule goes on.
                RuleStep::Verdict(RuleVerdict::Continue) => None,
                RuleStep::Verdict(verdict) => {
                    return Ok(self.verdict((chain, rule), verdict, truth, depth)?.after(before));
                }
                RuleStep::Map { key, values } => {
                    let (end, goes_on) = self.map((chain, rule), (key, values), truth, depth)?;
                    if !goes_on {
                        return Ok(end.after(before));
                    }
                    (truth, before) = (Truth::Maybe, end.after(before));
                    None
                }
            };
            if truth == Truth::No {
                return Ok(before);
            }
            if let Some(effect) = effect {
                return Err(self.reason_of((chain, rule), effect, truth));
            }
        }
        Ok(before)
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
        Ok(if truth == Truth::Yes { end } else { end.for_some() })
    }

    /// Follows all verdicts of a map that packets may get. Returns whether the rule may go on after it.
    fn map(
        &mut self,
        at: (&str, &FilterRule),
        (key, values): (&PacketKey, &'a KeyValues),
        truth: Truth,
        depth: usize,
    ) -> Found<(RuleEnd, bool)> {
        let Some(elements) = self.elements(values) else {
            return Err(self.reason_of(at, "the map is not known", truth));
        };
        if elements.is_changing || elements.may_expire {
            return Err(self.reason_of(at, "packets or time change the map", truth));
        }
        let of_packets = self.tuple(key);
        let (mut before, mut goes_on) = (RuleEnd::Next, false);
        for row in &elements.rows {
            self.notes.steps += 1;
            let of_row = truth.and(self.row_matches(key, &of_packets, row));
            let Some(verdict) = row.verdict.as_ref().filter(|_| of_row != Truth::No) else {
                continue;
            };
            goes_on |= *verdict == RuleVerdict::Continue;
            let end = self.verdict(at, verdict, of_row, depth)?.after(before);
            if of_row == Truth::Yes {
                return Ok((end, goes_on));
            }
            before = end;
        }
        Ok((before, goes_on))
    }

    fn test(&mut self, key: &PacketKey, values: &KeyValues, negated: bool) -> Truth {
        let of_packets = self.tuple(key);
        if of_packets.contains(&FieldValues::Absent) {
            return Truth::No;
        }
        let Some(elements) = self.elements(values).filter(|elements| !elements.is_changing) else {
            return Truth::Maybe;
        };
        self.notes.steps += elements.rows.len();
        let rows = elements.rows.iter().map(|row| self.row_matches(key, &of_packets, row));
        let found = match rows.max().unwrap_or(Truth::No) {
            Truth::Yes if elements.may_expire => Truth::Maybe,
            found => found,
        };
        if negated && found == Truth::No && of_packets.contains(&FieldValues::Nameless) {
            return Truth::Maybe;
        }
        found.negated(negated)
    }

    /// Whether a row of a set has the packets' values.
    fn row_matches(&mut self, key: &PacketKey, of_packets: &[FieldValues], row: &SetRow) -> Truth {
        if row.key.len() != of_packets.len() {
            return Truth::Maybe;
        }
        let parts: &[PacketKey] = match key {
            PacketKey::Tuple(parts) => parts,
            one => std::slice::from_ref(one),
        };
        let (mut whole, mut some_clients) = (None, None);
        for ((part, values), pattern) in parts.iter().zip(of_packets).zip(&row.key) {
            let field = match part {
                PacketKey::Field(field) => Some(*field),
                PacketKey::Changed { of, .. } => match **of {
                    PacketKey::Field(field) => Some(field),
                    _ => None,
                },
                _ => None,
            };
            let matches = values.are_in(pattern, |word| field?.number_of(word));
            let is_of_client = matches!(part, PacketKey::Field(field) if self.class.client_field() == Some(*field));
            if is_of_client && matches == Truth::Maybe && !pattern.is_open {
                some_clients = Some(&pattern.numbers);
            }
            whole = Some(whole.map_or(matches, |known: Truth| known.and(matches)));
        }
        let whole = whole.unwrap_or(Truth::Maybe);
        if let Some(numbers) = some_clients.filter(|_| whole == Truth::Maybe) {
            self.notes.some_clients = Some(numbers.clone());
        }
        whole
    }

    fn elements(&self, values: &'a KeyValues) -> Option<&'a SetElements> {
        match values {
            KeyValues::These(elements) => Some(elements),
            KeyValues::Named(name) => self.table.sets.get(name).map(|elements| &**elements),
        }
    }

    fn values(&self, key: &PacketKey) -> FieldValues {
        match key {
            PacketKey::Field(field) => self.class.values(*field, self.place),
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
