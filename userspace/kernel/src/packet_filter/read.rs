//! Reads all rules by the programs of their packages.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use signalbox_core::firewall::{FilterRuleset, FilterTable, IpFamily};
use signalbox_core::firewall::{IpSets, nft, save};

use super::program::output;

/// Families with the programs that show tables of iptables: those of nftables, and those of the older iptables.
const FAMILIES: [(IpFamily, &str, &str, &str); 2] = [
    (IpFamily::V4, "iptables-nft-save", "iptables-legacy-save", "iptables"),
    (IpFamily::V6, "ip6tables-nft-save", "ip6tables-legacy-save", "ip6tables"),
];

/// Rules of whose changes the kernel does not tell, as text.
#[derive(Default)]
pub(super) struct Polled {
    /// Tables of the older iptables, for IPv4 and for IPv6.
    legacy: [String; 2],
    sets: String,
}

impl Polled {
    /// Returns a number that changes with the rules, but not with their counters.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let lines = self
            .legacy
            .iter()
            .flat_map(|text| text.lines())
            .chain(self.sets.lines());
        for line in lines.filter(|line| !line.starts_with('#')) {
            // Lines of built-in chains end with counters.
            let end = line.find('[').filter(|_| line.starts_with(':')).unwrap_or(line.len());
            line[..end].hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// Reads the rules of the older iptables, and all ipsets. `legacy`: names of tables.
pub(super) fn polled(legacy: &[String; 2]) -> Result<Polled, String> {
    let mut polled = Polled::default();
    for (((_, _, program, _), names), text) in FAMILIES.iter().zip(legacy).zip(&mut polled.legacy) {
        if !names.is_empty() {
            let shown = output(program, &[])?.ok_or_else(|| missing(program, "iptables"))?;
            *text = String::from_utf8_lossy(&shown).into_owned();
        }
    }
    // Without the program, what rules say about sets is not known.
    let shown = output("ipset", &["save"]).ok().flatten().unwrap_or_default();
    polled.sets = String::from_utf8_lossy(&shown).into_owned();
    Ok(polled)
}

/// Reads all rules. Returns the fingerprint of those that have to be polled, if there are any.
pub(super) fn all(has_nftables: bool, legacy: &[String; 2]) -> Result<(FilterRuleset, Option<u64>), String> {
    let mut tables = if has_nftables { of_nftables()? } else { Vec::new() };
    let mut shown = Vec::new();
    for (family, program, _, label) in FAMILIES {
        if save::is_needed(&tables, family) {
            // Without the program, or if it fails, the rules stay opaque.
            let text = output(program, &[]).ok().flatten().unwrap_or_default();
            shown.push((family, label, String::from_utf8_lossy(&text).into_owned()));
        }
    }
    let is_polled = legacy.iter().any(|names| !names.is_empty());
    let uses_sets = |text: &str| text.contains("--match-set");
    let (mut polled_rules, mut fingerprint) = (Polled::default(), None);
    if is_polled || shown.iter().any(|(_, _, text)| uses_sets(text)) {
        polled_rules = polled(legacy)?;
        fingerprint = Some(polled_rules.fingerprint());
    }
    let texts = || polled_rules.legacy.iter().chain(shown.iter().map(|(_, _, text)| text));
    // Rules may change sets: then nothing is known of them.
    let sets = if texts().any(|text| text.contains("-j SET ")) {
        IpSets::default()
    } else {
        IpSets::parse(&polled_rules.sets)
    };
    for (family, label, text) in &shown {
        save::fill(&mut tables, save::parse(text, *family, label, &sets)?);
    }
    for ((family, _, _, label), text) in FAMILIES.iter().zip(&polled_rules.legacy) {
        tables.extend(save::parse(text, *family, label, &sets)?);
    }
    let ruleset = FilterRuleset {
        tables,
        virtual_services: Vec::new(),
    };
    Ok((ruleset, fingerprint))
}

fn of_nftables() -> Result<Vec<FilterTable>, String> {
    let json = output("nft", &["--json", "--handle", "list", "ruleset"])?;
    nft::parse(&json.ok_or_else(|| missing("nft", "nftables"))?)
}

fn missing(program: &str, package: &str) -> String {
    format!("`{program}` is missing, which shows the rules: install package {package}")
}
