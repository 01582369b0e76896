//! High availability: meaning of the section, and the messages of its rules when broken.

use std::time::Duration;

use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::{HaMode, HaSyncServices, Preemption, VrrpVersion};

use super::{documented, only_mistakes, plus, right};

const NODES: &str = "nodes: [{ name: node-a, address: 10.1.0.11 }, { name: node-b, address: 10.1.0.12 }]";

fn ha_of(text: &str) -> HighAvailability {
    right(&plus(text)).model.ha.unwrap()
}

fn warnings_of(text: &str) -> Vec<String> {
    let warnings = right(&plus(text)).warnings;
    warnings.iter().map(|warning| warning.message.clone()).collect()
}

#[test]
fn the_documented_section_means_what_it_says() {
    let ha = ha_of(documented("ha:\n  name"));
    assert_eq!(
        (ha.name.as_str(), ha.mode, ha.node.as_deref()),
        ("router-west", HaMode::Keepalived, Some("node-a"))
    );
    assert_eq!(
        (ha.own_slot("elsewhere"), ha.nodes[1].address),
        (Some(0), "10.1.0.12".parse().unwrap())
    );
    assert_eq!(ha.interface.as_deref(), Some("eth0"));
    let [g1, g2] = &ha.groups[..] else {
        panic!("{:?}", ha.groups)
    };
    assert_eq!(
        (g1.name.as_str(), g1.vips.len(), g1.prefer.as_deref()),
        ("g1", 4, Some("node-a"))
    );
    assert_eq!(
        (g2.vips.len(), g2.vips[2], g2.prefer.as_deref()),
        (5, "fd00::6".parse().unwrap(), None)
    );
    let source = &g1.sources[0];
    assert_eq!(
        (source.address, source.prefix, source.interface.as_deref()),
        ("10.2.0.5".parse().unwrap(), 24, Some("eth1"))
    );
    assert_eq!((g2.sources[1].prefix, g2.sources[1].interface.as_deref()), (32, None));
    assert_eq!((ha.watch.port, ha.watch.ready, ha.watch.script), (80, true, None));
    assert_eq!(ha.preemption, Preemption::WhenSynced);
    assert_eq!(
        (ha.vrrp.version, ha.vrrp.advert, ha.vrrp.unicast),
        (VrrpVersion::V3, Duration::from_millis(100), true)
    );
    assert_eq!((ha.vrrp.id_offset, ha.vrrp.exclude_ids.contains(&51)), (10, true));
    assert_eq!(ha.notify.as_deref(), Some("/etc/signalbox/notify".as_ref()));
    assert!(ha.firewall);
    assert_eq!(ha.email.unwrap().to, ["root@localhost"]);
    let sync = ha.sync.unwrap();
    assert_eq!(
        (sync.listen, sync.flows, sync.services),
        ("10.1.0.11:8090".parse().unwrap(), 131_072, HaSyncServices::Tcp)
    );
}

#[test]
fn addresses_alone_are_enough() {
    let ha = ha_of("ha: { vips: '10.1.1.5-8,42.42.42.42' }");
    assert_eq!(
        (ha.name.as_str(), ha.groups.len(), ha.groups[4].name.as_str()),
        ("ha-config-1", 5, "g5")
    );
    assert_eq!(
        (ha.watch.port, ha.watch.interval, ha.watch.ready),
        (0, Duration::from_secs(2), true)
    );
    assert_eq!(
        (ha.vrrp.advert, ha.vrrp.id_offset, ha.firewall),
        (Duration::from_millis(100), 0, false)
    );
    assert_eq!((ha.own_name("node-7"), ha.own_slot("node-7")), ("node-7", None));
    assert!(warnings_of("ha: { vips: 10.1.1.5 }").is_empty());
    assert_eq!(right(super::EXAMPLE).model.ha, None);
}

#[test]
fn groups_by_number() {
    let ha = ha_of("ha: { vips: [10.1.1.1-5, 'fd00::1-2'], groups: 3 }");
    let sizes: Vec<_> = ha.groups.iter().map(|group| group.vips.len()).collect();
    assert_eq!(sizes, [3, 2, 2]);
}

#[test]
fn preemption_in_the_words_of_openshift() {
    for (text, meaning) in [
        ("when-synced", Preemption::WhenSynced),
        ("never", Preemption::Never),
        ("nopreempt", Preemption::Never),
        ("preempt_delay 300", Preemption::Delay(Duration::from_secs(300))),
        ("{ delay: 5m }", Preemption::Delay(Duration::from_secs(300))),
        ("preempt_delay 0", Preemption::Delay(Duration::ZERO)),
    ] {
        assert_eq!(
            ha_of(&format!("ha: {{ vips: 10.1.1.5, preemption: {text} }}")).preemption,
            meaning,
            "{text}"
        );
    }
}

#[test]
fn mistakes_of_addresses_and_groups() {
    let with = |keys: &str| plus(&format!("ha: {{ {NODES}, {keys} }}"));
    only_mistakes(
        &with,
        r"
            groups: 2                        | ha                      | there are no addresses to share
            vips: 10.1.1.8-5                 | ha.vips                 | start=8 > end=5
            vips: [10.1.1.5, x]              | ha.vips[1]              | `x` is neither an IP address nor a range
            vips: []                         | ha.vips                 | the list of addresses is empty
            vips: [10.1.1.1-9, 10.1.1.5]     | ha.vips[1]              | 10.1.1.5 is given twice, first on line
            vips: 10.1.1.5, groups: 0        | ha.groups               | from 1 to 255
            vips: 10.1.1.5, groups: []       | ha.vips                 | in a list of `groups`, write `vips` in each
            groups: []                       | ha.groups               | there are no groups: give at least one
            groups: [{ name: a }]            | ha.groups[0]            | the key `vips` is missing
            groups: [{ name: a, vips: 10.1.1.1 }, { name: a, vips: 10.1.1.2 }] | ha.groups[1].name | there already is a group `a`
            groups: [{ name: a, vips: 10.1.1.1, prefer: node-c }]        | ha.groups[0].prefer     | `node-c` is not one of the `nodes`; did you mean `node-a`?
            groups: [{ name: a, vips: 10.1.1.1, sources: [10.2.0.5/33] }] | ha.groups[0].sources[0] | the prefix length of 10.2.0.5 must be 1 to 32
            groups: [{ name: a, vips: 10.1.1.1, sources: [10.2.0.5-6] }] | ha.groups[0].sources[0] | is not a source, such as
            groups: [{ name: a, vips: 10.1.1.1, sources: ['10.2.0.5@'] }] | ha.groups[0].sources[0] | is not a source, such as
            groups: [{ name: a, vips: 10.1.1.1, sources: [10.1.1.1] }]   | ha.groups[0].sources[0] | 10.1.1.1 is given twice
            vips: 10.1.1.1-9, vrrp: { id_offset: 250 } | ha.vips | there are 9 groups, but after the offset 250 only 5
        ",
    );
}

#[test]
fn mistakes_of_nodes() {
    let with = |keys: &str| {
        let vips = if keys.starts_with("vips") {
            ""
        } else {
            "vips: 10.1.1.5, "
        };
        plus(&format!("ha: {{ {vips}{keys} }}"))
    };
    let nine: Vec<_> = (1..=9)
        .map(|n| format!("{{ name: n{n}, address: 10.1.0.{n} }}"))
        .collect();
    super::only_mistake(
        &with(&format!("nodes: [{}]", nine.join(", "))),
        "ha.nodes[8]",
        "at most 8 are allowed",
    );
    super::only_mistake(
        &with(&format!("{NODES}, node: node-c")),
        "ha.node",
        "not one of the `nodes` (node-a, node-b)",
    );
    only_mistakes(
        &with,
        r"
            nodes: [{ name: a, address: x }]    | ha.nodes[0].address | `x` is not an IP address
            nodes: [{ name: a, address: 10.1.0.1 }, { name: a, address: 10.1.0.2 }] | ha.nodes[1].name | there already is a node `a`
            nodes: [{ name: a, address: 10.1.0.1 }, { name: b, address: 10.1.0.1 }] | ha.nodes[1]      | is already the address of node `a`
            nodes: [{ name: a, address: 10.1.0.1 }, { name: b, address: 'fd00::1' }], vrrp: { unicast: true } | ha.vrrp | addresses of one family
            vips: ['fd00::1'], nodes: [{ name: a, address: 10.1.0.1 }, { name: b, address: 10.1.0.2 }], vrrp: { unicast: true } | ha.vrrp | group `g1` has no IPv4 address
            sync: { listen: '10.1.0.1:8090', cert: /c, key: /k, ca: /a } | ha.sync | give at least two
        ",
    );
    let synced = |sync: &str| with(&format!("{NODES}, sync: {{ cert: /c, key: /k, ca: /a, {sync} }}"));
    only_mistakes(
        &synced,
        r"
            flows: 1                          | ha.sync          | the key `listen` is missing
            listen: 10.1.0.1                  | ha.sync.listen   | is not an address with a port
            listen: '127.0.0.1:8089'          | ha.sync.listen   | is already used by admin.listen
            listen: '10.1.0.1:8090', flows: 0 | ha.sync.flows    | from 1 to 4194304
            listen: '10.1.0.1:8090', services: udp | ha.sync.services | allowed: tcp or off
        ",
    );
}

#[test]
fn mistakes_of_the_rest() {
    let with = |keys: &str| plus(&format!("ha: {{ vips: 10.1.1.5, {keys} }}"));
    only_mistakes(
        &with,
        r"
            name: a b                         | ha.name            | is not a name
            mode: vrrp                        | ha.mode            | allowed: keepalived, address or external
            interface: eth0/1                 | ha.interface       | is not the name of an interface
            interface: abcdefghijklmnop       | ha.interface       | 1 to 15 letters
            watch: { port: 65536 }            | ha.watch.port      | from 0 to 65535
            watch: { interval: 2 }            | ha.watch.interval  | has no unit
            watch: { script: check }          | ha.watch.script    | is not the absolute path of a program
            watch: { ready: maybe }           | ha.watch.ready     | a boolean
            notify: bin/notify                | ha.notify          | is not the absolute path of a program
            preemption: always                | ha.preemption      | is neither `when-synced`, `never`
            preemption: { delay: 1h }         | ha.preemption.delay | at most 1000s
            preemption: preempt_delay 1001    | ha.preemption      | at most 1000s
            preemption: {}                    | ha.preemption      | the key `delay` is missing
            vrrp: { version: 4 }              | ha.vrrp.version    | from 2 to 3
            vrrp: { advert: 15ms }            | ha.vrrp.advert     | write a multiple of 10ms
            vrrp: { advert: 41s }             | ha.vrrp.advert     | at most 40950ms
            vrrp: { version: 2, advert: 256s, password_file: /p } | ha.vrrp.advert | at most 255s
            vrrp: { id_offset: 255 }          | ha.vrrp.id_offset  | from 0 to 254
            vrrp: { exclude_ids: [0] }        | ha.vrrp.exclude_ids[0] | from 1 to 255
            vrrp: { exclude_ids: [7, 7] }     | ha.vrrp.exclude_ids[1] | this id is given twice
            vrrp: { password_file: /p }       | ha.vrrp.password_file | VRRPv3 has no password
            firewall: open                    | ha.firewall        | allowed: accept or off
            email: { to: [], from: a@b }      | ha.email.to        | at least one recipient
            email: { to: [a], from: a@b }     | ha.email.to[0]     | is not a mail address
            email: { to: [a@b], from: a@b, smtp: mail } | ha.email.smtp | is not the IP address of a mail server
            vipps: 1                          | ha.vipps           | unknown key `vipps`
        ",
    );
}

#[test]
fn oddities() {
    let begins = |text: &str, part: &str| {
        let warnings = warnings_of(text);
        assert!(
            warnings.len() == 1 && warnings[0].contains(part),
            "{text}: {warnings:?}"
        );
    };
    begins(
        "ha: { vips: 10.1.1.5, vrrp: { unicast: true } }",
        "has no effect without other `nodes`",
    );
    begins(
        "ha: { vips: 10.1.1.5, name: west, vrrp: { version: 2, advert: 1500ms } }",
        "`1500ms` is rounded up",
    );
    begins(
        "ha: { vips: 10.1.1.5, vrrp: { version: 2 } }",
        "the password of VRRPv2 is `ha-confi`",
    );
    begins(
        "ha: { vips: 10.1.1.5, mode: address, vrrp: { version: 2 } }",
        "`vrrp` has no effect",
    );
    let sync = "sync: { listen: '10.1.0.11:8090', cert: /c, key: /k, ca: /a }";
    begins(
        &format!("ha: {{ vips: 10.1.1.5, mode: address, {NODES}, {sync} }}"),
        "connections are not protected",
    );
    begins(
        "ha: { vips: 10.1.1.5, watch: { port: 80, script: /x } }",
        "in place of the check of `port`",
    );
    assert!(warnings_of("ha: { vips: 10.1.1.5, vrrp: { version: 2, password_file: /p } }").is_empty());
}

/// Sections `ha` of docs/high-availability.md, with the rest of a file.
#[test]
fn the_documented_sections_are_right() {
    let page = include_str!("../../../../docs/high-availability.md");
    let sections: Vec<&str> = page
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|text| text.starts_with("ha:\n"))
        .collect();
    assert!(sections.len() >= 2, "{sections:?}");
    for section in sections {
        right(&plus(&section.replace("ha:\n", "ha:\n  node: node-a\n")));
    }
}
