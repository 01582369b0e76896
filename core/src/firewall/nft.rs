//! Rules as `nft --json --handle list ruleset` shows them. What is not known of a rule counts as an effect, or as
//! *maybe*; what is not known of a chain or a table is an error.

mod elements;
mod operand;
mod statement;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::form::{ChainBase, FilterChain, FilterRule, FilterTable, IpFamily, PacketHook, RuleStep};

/// Reads all tables but those of ARP and of bridges.
pub fn parse(json: &[u8]) -> Result<Vec<FilterTable>, String> {
    let document: Document =
        serde_json::from_slice(json).map_err(|error| format!("nft has answered what is not understood: {error}"))?;
    let Listing { mut tables, changed } = document.nftables;
    for (key, name) in &changed {
        if let Some(set) = tables.get_mut(key).and_then(|table| table.sets.get_mut(name)) {
            Arc::make_mut(set).is_changing = true;
        }
    }
    Ok(tables.into_values().collect())
}

#[derive(Deserialize)]
struct Document {
    #[serde(deserialize_with = "items")]
    nftables: Listing,
}

/// Objects that do nothing unless a rule names them.
const HARMLESS: [&str; 12] = [
    "metainfo",
    "flowtable",
    "counter",
    "quota",
    "limit",
    "ct helper",
    "ct timeout",
    "ct expectation",
    "secmark",
    "synproxy",
    "tunnel",
    "meter",
];

/// Family and name of a table.
type TableKey = (String, String);

#[derive(Default)]
struct Listing {
    tables: BTreeMap<TableKey, FilterTable>,
    /// Sets that rules change.
    changed: BTreeSet<(TableKey, String)>,
}

/// Takes items one by one: a document of all of them may be large.
fn items<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Listing, D::Error> {
    struct Items;

    impl<'de> Visitor<'de> for Items {
        type Value = Listing;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of tables, chains and rules")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Listing, A::Error> {
            let mut listing = Listing::default();
            while let Some(item) = seq.next_element::<BTreeMap<String, Value>>()? {
                for (kind, value) in &item {
                    listing.add(kind, value).map_err(A::Error::custom)?;
                }
            }
            Ok(listing)
        }
    }
    deserializer.deserialize_seq(Items)
}

impl Listing {
    fn add(&mut self, kind: &str, item: &Value) -> Result<(), String> {
        if HARMLESS.contains(&kind) {
            return Ok(());
        }
        if !matches!(kind, "table" | "chain" | "rule" | "set" | "map") {
            return Err(format!("nft has shown what is not understood: {kind}"));
        }
        let family = word(item, "family")?;
        let of = match family {
            "ip" => Some(IpFamily::V4),
            "ip6" => Some(IpFamily::V6),
            "inet" | "netdev" => None,
            "arp" | "bridge" => return Ok(()),
            other => return Err(format!("family {other} is not known")),
        };
        let of_table = if kind == "table" { "name" } else { "table" };
        let key = (family.to_owned(), word(item, of_table)?.to_owned());
        let table = self.tables.entry(key.clone()).or_insert_with(|| FilterTable {
            family: key.0.clone(),
            of,
            name: key.1.clone(),
            chains: BTreeMap::new(),
            sets: BTreeMap::new(),
        });
        match kind {
            "chain" => {
                let base = base_of(item)?;
                let chain = FilterChain {
                    base,
                    rules: Vec::new(),
                };
                table.chains.insert(word(item, "name")?.to_owned(), chain);
            }
            "set" | "map" => {
                let elements = elements::of_set(item);
                table.sets.insert(word(item, "name")?.to_owned(), Arc::new(elements));
            }
            "rule" => {
                let name = word(item, "chain")?;
                let chain = table
                    .chains
                    .get_mut(name)
                    .ok_or_else(|| format!("chain {name} is not known"))?;
                let rule = rule(item);
                let changed = item.get("expr").into_iter().flat_map(statement::changed_sets);
                self.changed.extend(changed.map(|name| (key.clone(), name)));
                chain.rules.push(rule);
            }
            _ => {}
        }
        Ok(())
    }
}

fn word<'a>(item: &'a Value, key: &str) -> Result<&'a str, String> {
    let found = item.get(key).and_then(Value::as_str);
    found.ok_or_else(|| format!("`{key}` is missing in {item:.80}"))
}

/// Where packets enter a chain.
fn base_of(chain: &Value) -> Result<Option<ChainBase>, String> {
    let Some(hook) = chain.get("hook") else {
        return Ok(None);
    };
    let hook = match hook.as_str() {
        Some("ingress") => PacketHook::Ingress,
        Some("prerouting") => PacketHook::Prerouting,
        Some("input") => PacketHook::Input,
        Some("forward") => PacketHook::Forward,
        Some("output") => PacketHook::Output,
        Some("postrouting") => PacketHook::Postrouting,
        Some("egress") => PacketHook::Egress,
        _ => return Err(format!("hook {hook} is not known")),
    };
    Ok(Some(ChainBase {
        hook,
        priority: chain
            .get("prio")
            .and_then(Value::as_i64)
            .ok_or("a chain has no priority")?,
        is_nat: chain.get("type").and_then(Value::as_str) == Some("nat"),
        drops: chain.get("policy").is_none_or(|policy| policy != "accept"),
    }))
}

fn rule(item: &Value) -> FilterRule {
    let handle = item.get("handle").and_then(Value::as_u64).unwrap_or_default();
    let mut rule = FilterRule {
        place: format!("handle {handle}"),
        ..FilterRule::default()
    };
    match item.get("expr").and_then(Value::as_array) {
        Some(statements) => {
            rule.text = text::of_rule(statements);
            rule.is_opaque = statements.iter().any(|statement| statement.get("xt").is_some());
            rule.steps = statements.iter().flat_map(statement::steps).collect();
        }
        None => rule
            .steps
            .push(RuleStep::Effect("the rule is not understood".to_owned())),
    }
    rule
}
