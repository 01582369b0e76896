//! Rules as `iptables-save` and `ip6tables-save` show them, of both kinds (`-nft-save`, `-legacy-save`).

mod matches;
mod target;
mod tokens;

use std::collections::{BTreeMap, HashMap};

use super::form::{ChainBase, FilterChain, FilterRule, FilterTable, IpFamily, PacketHook, RuleStep};
use super::ipset::IpSets;
pub(super) use matches::{PURE_MATCHES, port_range};
use tokens::RuleWords;

/// Reads all tables. `label`: family that the tables are shown with.
pub fn parse(text: &str, of: IpFamily, label: &str, sets: &IpSets) -> Result<Vec<FilterTable>, String> {
    let mut tables: Vec<FilterTable> = Vec::new();
    for line in text.lines().map(str::trim) {
        let unknown = || format!("iptables-save has shown what is not understood: {line:.80}");
        let mut characters = line.chars();
        let (first, rest) = (characters.next(), characters.as_str());
        match first {
            None | Some('#') => {}
            _ if line == "COMMIT" => {}
            Some('*') => tables.push(FilterTable {
                family: label.to_owned(),
                of: Some(of),
                name: rest.to_owned(),
                chains: BTreeMap::new(),
                sets: BTreeMap::new(),
            }),
            Some(':') => {
                let table = tables.last_mut().ok_or_else(unknown)?;
                let mut words = rest.split(' ');
                let (name, policy) = words.next().zip(words.next()).ok_or_else(unknown)?;
                let base = match policy {
                    "-" => None,
                    policy => Some(base_of(&table.name, name, policy).ok_or_else(unknown)?),
                };
                table.chains.insert(
                    name.to_owned(),
                    FilterChain {
                        base,
                        rules: Vec::new(),
                    },
                );
            }
            _ => {
                let table = tables.last_mut().ok_or_else(unknown)?;
                let added = line.strip_prefix("-A ").ok_or_else(unknown)?;
                let (name, rule) = added.split_once(' ').unwrap_or((added, ""));
                let steps = rule_steps(rule, of, sets, &table.chains);
                let chain = table.chains.get_mut(name).ok_or_else(unknown)?;
                let number = chain.rules.len() + 1;
                chain.rules.push(FilterRule {
                    place: format!("rule {number}"),
                    text: rule.to_owned(),
                    steps,
                    is_opaque: false,
                });
            }
        }
    }
    Ok(tables)
}

/// Hook, priority and policy of a built-in chain.
fn base_of(table: &str, chain: &str, policy: &str) -> Option<ChainBase> {
    let hook = match chain {
        "PREROUTING" => PacketHook::Prerouting,
        "INPUT" => PacketHook::Input,
        "FORWARD" => PacketHook::Forward,
        "OUTPUT" => PacketHook::Output,
        "POSTROUTING" => PacketHook::Postrouting,
        _ => return None,
    };
    let priority = match table {
        "raw" => -300,
        "mangle" => -150,
        "nat" => -100,
        "filter" => 0,
        "security" => 50,
        _ => return None,
    };
    Some(ChainBase {
        hook,
        priority,
        is_nat: table == "nat",
        drops: policy != "ACCEPT",
    })
}

fn rule_steps(rule: &str, of: IpFamily, sets: &IpSets, chains: &BTreeMap<String, FilterChain>) -> Vec<RuleStep> {
    let mut tokens = RuleWords::new(rule);
    let mut steps = Vec::new();
    matches::read(&mut tokens, of, sets, &mut steps);
    target::read(&mut tokens, |name| chains.contains_key(name), &mut steps);
    steps
}

/// Gives tables of nftables the rules that `iptables-nft-save` shows of them, where nft does not show all of a rule.
/// Handles stay those of nft.
pub fn fill(tables: &mut [FilterTable], saved: Vec<FilterTable>) {
    let mut saved: HashMap<_, _> = saved
        .into_iter()
        .map(|table| ((table.of, table.name), table.chains))
        .collect();
    for table in tables.iter_mut().filter(|table| table.of.is_some()) {
        let Some(chains) = saved.remove(&(table.of, table.name.clone())) else {
            continue;
        };
        for (name, chain) in &mut table.chains {
            let of_chain = chains.get(name).filter(|shown| shown.rules.len() == chain.rules.len());
            let shown = of_chain.into_iter().flat_map(|shown| &shown.rules);
            for (rule, shown) in chain.rules.iter_mut().zip(shown).filter(|(rule, _)| rule.is_opaque) {
                rule.steps.clone_from(&shown.steps);
                rule.text.clone_from(&shown.text);
                rule.is_opaque = false;
            }
        }
    }
}

/// Whether `iptables-nft-save` has to show a table of nftables of this family.
#[must_use]
pub fn is_needed(tables: &[FilterTable], family: IpFamily) -> bool {
    let of_family = tables.iter().filter(|table| table.of == Some(family));
    of_family
        .flat_map(|table| table.chains.values())
        .flat_map(|chain| &chain.rules)
        .any(|rule| rule.is_opaque)
}
