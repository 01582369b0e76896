//! The environment of OpenShift's image: keepalived's configuration by signalbox, compared with that of OpenShift's own
//! generator (facts, in `openshift.txt`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use signalbox_lab::{Ns, Sandbox};

use super::scene::privileged;
use crate::lab::lab_test;
use crate::lab::signalbox::binary;
use crate::lab::topology::KIND;

const FACTS: &str = include_str!("openshift.txt");

/// Variables of OpenShift's image that go into keepalived's configuration.
const VARIABLES: [&str; 18] = [
    "OPENSHIFT_HA_CONFIG_NAME",
    "OPENSHIFT_HA_SELECTOR",
    "OPENSHIFT_HA_VIRTUAL_IPS",
    "OPENSHIFT_HA_VIP_GROUPS",
    "OPENSHIFT_HA_NETWORK_INTERFACE",
    "OPENSHIFT_HA_MONITOR_PORT",
    "OPENSHIFT_HA_REPLICA_COUNT",
    "OPENSHIFT_HA_VRRP_ID_OFFSET",
    "HA_EXCLUDED_VRRP_IDS",
    "OPENSHIFT_HA_IPTABLES_CHAIN",
    "OPENSHIFT_HA_CHECK_SCRIPT",
    "OPENSHIFT_HA_CHECK_INTERVAL",
    "OPENSHIFT_HA_NOTIFY_SCRIPT",
    "OPENSHIFT_HA_PREEMPTION",
    "OPENSHIFT_HA_USE_UNICAST",
    "OPENSHIFT_HA_UNICAST_PEERS",
    "OPENSHIFT_HA_ADMIN_EMAILS",
    "OPENSHIFT_HA_SMTP_SERVER",
];

/// Value of a directive that is not there.
const ABSENT: &str = "-";

/// Directives of a configuration, by their blocks and names.
type Directives = BTreeMap<String, String>;

/// A fact: a directive and its values.
struct Fact {
    directive: &'static str,
    openshift: &'static str,
    ours: &'static str,
    why: &'static str,
}

/// An environment, and the facts about it.
struct Case {
    title: &'static str,
    variables: Vec<(&'static str, &'static str)>,
    facts: Vec<Fact>,
}

fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in FACTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(title) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            cases.push(Case {
                title,
                variables: Vec::new(),
                facts: Vec::new(),
            });
            continue;
        }
        let case = cases.last_mut().expect("a case begins with its title");
        let parts: Vec<_> = line.split('|').map(str::trim).collect();
        match parts[..] {
            [directive, openshift, ours, why] => case.facts.push(Fact {
                directive,
                openshift,
                ours,
                why,
            }),
            _ => case
                .variables
                .push(line.split_once('=').expect("a variable or four columns")),
        }
    }
    cases
}

/// Blocks whose lines are values, not directives.
const LISTS: [&str; 5] = [
    "notification_email",
    "track_script",
    "unicast_peer",
    "virtual_ipaddress",
    "virtual_ipaddress_excluded",
];

/// Reads keepalived's configuration. Instances are numbered: their names are directives here.
fn directives(text: &str) -> Directives {
    let (mut all, mut blocks, mut instances) = (Directives::new(), Vec::<String>::new(), 0);
    for line in text.lines().map(str::trim) {
        if let Some(block) = line.strip_suffix('{').map(str::trim) {
            let (kind, name) = block.split_once(' ').unwrap_or((block, ""));
            if kind == "vrrp_instance" {
                instances += 1;
                blocks.push(format!("{kind} {instances}"));
            } else {
                blocks.push(kind.to_owned());
            }
            if !name.is_empty() {
                all.insert(format!("{} name", blocks.join(" ")), name.to_owned());
            }
        } else if line == "}" {
            blocks.pop();
        } else if LISTS.contains(&blocks.last().map_or("", String::as_str)) {
            let values = all.entry(blocks.join(" ")).or_default();
            let separator = if values.is_empty() { "" } else { ", " };
            *values += &format!("{separator}{}", plain(line));
        } else if !line.is_empty() && !line.starts_with('#') {
            let (directive, value) = line.split_once(' ').unwrap_or((line, "yes"));
            let value = value.trim_matches('"').to_owned();
            all.insert(format!("{} {directive}", blocks.join(" ")), value);
        }
    }
    assert!(blocks.is_empty(), "{text}");
    all
}

/// Leaves out the prefix length of one address, which keepalived takes where there is none.
fn plain(value: &str) -> String {
    value.replace("/32 ", " ").replace("/128 ", " ")
}

/// Whether a value fits a fact: the same, or a number between two.
fn fits(fact: &str, value: &str) -> bool {
    match fact.split_once(" to ") {
        Some((least, most)) => {
            let number = |text: &str| text.parse::<u32>().ok();
            number(value).is_some_and(|value| number(least) <= Some(value) && Some(value) <= number(most))
        }
        None => fact == value,
    }
}

fn render(ns: &Ns, case: &Case) -> String {
    let mut command = ns.command(binary());
    command.args(["ha-config", "--from-env", "-o", "keepalived"]);
    command
        .env_remove("SIGNALBOX_CONFIG")
        .envs(case.variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}: {output:?}", case.title);
    String::from_utf8(output.stdout).unwrap()
}

#[lab_test(privileged)]
fn every_fact_about_the_two_generators_holds() {
    let sandbox = Sandbox::new(&KIND).unwrap();
    let ns = sandbox.namespace("lb").unwrap();
    ns.ip(
        "link add eth0 type veth peer name peer\nlink set eth0 up\nlink set peer up\naddr add 10.1.0.11/24 dev eth0\n\
           route add default via 10.1.0.1\n",
    )
    .unwrap();
    let cases = cases();
    let used: BTreeSet<_> = cases
        .iter()
        .flat_map(|case| &case.variables)
        .map(|(name, _)| *name)
        .collect();
    for variable in VARIABLES {
        assert!(used.contains(variable), "no case has {variable}");
    }
    let mut wrong = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let text = render(&ns, case);
        let file = sandbox.dir().join("keepalived.conf");
        // A script that is not there is a mistake for keepalived.
        fs::write(&file, text.replace("/usr/bin/signalbox", binary())).unwrap();
        let file = file.to_str().unwrap();
        if let Err(error) = ns.try_must(&["keepalived", "--config-test", "--vrrp", "--use-file", file], "") {
            wrong.push(format!(
                "{}: keepalived does not take it: {error:#}\n{text}",
                case.title
            ));
        }
        let ours = directives(&text);
        for fact in &case.facts {
            let value = ours.get(fact.directive).map_or(ABSENT, String::as_str);
            if !fits(fact.ours, value) {
                wrong.push(format!(
                    "{}: {} is {value}, not {}",
                    case.title, fact.directive, fact.ours
                ));
            }
            // A difference has a reason, and equal values need none.
            if fact.openshift.eq_ignore_ascii_case(fact.ours) != fact.why.is_empty() {
                wrong.push(format!(
                    "{}: {}: {} | {} | {}",
                    case.title, fact.directive, fact.openshift, fact.ours, fact.why
                ));
            }
        }
        let is_listed = |directive: &String| case.facts.iter().any(|fact| fact.directive == directive.as_str());
        // The first case names everything.
        let unlisted = ours.keys().filter(|directive| at == 0 && !is_listed(directive));
        wrong.extend(unlisted.map(|directive| format!("{}: {directive} is not in the table", case.title)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
