//! The firewall: a rule in each of nftables' input chains that lets VRRP in.
//!
//! A separate table would not do: a packet that one chain accepts is still dropped by another of the same hook.

use anyhow::Context as _;
use serde::Deserialize;

use crate::program;

/// Comment by which the rules are known.
const COMMENT: &str = "signalbox-ha";
/// Number of VRRP among the protocols of IP.
const VRRP_PROTOCOL: u8 = 112;

#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    chain: Option<Chain>,
    rule: Option<Rule>,
}

#[derive(Deserialize)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Rule {
    family: String,
    table: String,
    chain: String,
    handle: u64,
    comment: Option<String>,
}

impl Chain {
    fn filters_input(&self) -> bool {
        let is_ip = matches!(self.family.as_str(), "ip" | "ip6" | "inet");
        is_ip && self.hook.as_deref() == Some("input") && self.kind.as_deref() == Some("filter")
    }
}

impl Rule {
    fn is_ours(&self) -> bool {
        self.comment.as_deref() == Some(COMMENT)
    }
}

/// Adds the rule to chains that have none; returns to how many.
pub(crate) async fn open() -> anyhow::Result<usize> {
    let items = list().await?;
    let has_rule = |chain: &Chain| {
        let is_in = |rule: &Rule| {
            rule.is_ours() && (&rule.family, &rule.table, &rule.chain) == (&chain.family, &chain.table, &chain.name)
        };
        items.iter().filter_map(|item| item.rule.as_ref()).any(is_in)
    };
    let mut script = String::new();
    for chain in items.iter().filter_map(|item| item.chain.as_ref()) {
        if chain.filters_input() && !has_rule(chain) {
            let Chain {
                family, table, name, ..
            } = chain;
            script += &format!(
                "insert rule {family} {table} {name} meta l4proto {VRRP_PROTOCOL} accept comment \"{COMMENT}\"\n"
            );
        }
    }
    run(&script).await?;
    Ok(script.lines().count())
}

/// Removes all of the rules.
pub(crate) async fn close() -> anyhow::Result<()> {
    let mut script = String::new();
    for rule in list().await?.iter().filter_map(|item| item.rule.as_ref()) {
        if rule.is_ours() {
            let Rule {
                family,
                table,
                chain,
                handle,
                ..
            } = rule;
            script += &format!("delete rule {family} {table} {chain} handle {handle}\n");
        }
    }
    run(&script).await
}

async fn list() -> anyhow::Result<Vec<Item>> {
    let text = program::output("nft", &["--json", "--handle", "list", "ruleset"], "").await?;
    let listing: Listing = serde_json::from_str(&text).context("reading what `nft --json list ruleset` says")?;
    Ok(listing.nftables)
}

async fn run(script: &str) -> anyhow::Result<()> {
    if !script.is_empty() {
        program::output("nft", &["--file", "-"], script).await?;
    }
    Ok(())
}
