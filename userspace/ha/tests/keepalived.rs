//! Whatever the section `ha` says, keepalived takes what is made of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use signalbox_core::availability::ha::keepalived::{NodeContext, Tracking, render};
use signalbox_core::availability::ha::{groups, ranges};
use signalbox_core::model::HighAvailability;
use signalbox_core::model::ha::{
    FloatingSource, HaEmail, HaMode, HaNode, HaWatch, MAX_HA_NODES, Preemption, VipGroup, Vrrp, VrrpVersion,
};
use signalbox_lab::{Kind, Ns, Sandbox, privileged};

const KIND: Kind = Kind {
    prefix: "sbxka",
    program: "keepalived",
    detach: |_| {},
};

/// Combinations that are tried.
const CASES: u32 = 300;

fn addresses(base: &'static str, most: usize) -> impl Strategy<Value = Vec<IpAddr>> {
    (0..=most).prop_map(move |count| match count {
        0 => Vec::new(),
        count => ranges::parse(&format!("{base}1-{count:x}")).unwrap(),
    })
}

fn vip_groups() -> impl Strategy<Value = Vec<VipGroup>> {
    // IPv4 ranges are decimal: nine addresses at most are the same in both.
    let vips = (addresses("10.9.0.", 9), addresses("fd00:9::", 48))
        .prop_filter("no address", |(v4, v6)| !v4.is_empty() || !v6.is_empty());
    (vips, 1..6usize, any::<[bool; 3]>()).prop_map(|((v4, v6), count, [v4_source, v6_source, prefers])| {
        let mut groups = groups::divide(&[v4, v6].concat(), count);
        let source = |address: &str, prefix, interface: Option<&str>| FloatingSource {
            address: address.parse().unwrap(),
            prefix,
            interface: interface.map(str::to_owned),
        };
        let first = &mut groups[0];
        first
            .sources
            .extend(v4_source.then(|| source("10.2.0.5", 24, Some("eth1"))));
        first.sources.extend(v6_source.then(|| source("fd00:2::5", 64, None)));
        first.prefer = prefers.then(|| "n1".to_owned());
        groups
    })
}

fn vrrp() -> impl Strategy<Value = Vrrp> {
    let version = prop_oneof![Just(VrrpVersion::V2), Just(VrrpVersion::V3)];
    let exclude = proptest::collection::btree_set(1..=255u8, 0..5);
    (version, 1..=4095u64, any::<bool>(), 0..240u8, exclude).prop_map(
        |(version, hundredths, unicast, offset, exclude)| Vrrp {
            version,
            advert: Duration::from_millis(hundredths * 10),
            unicast,
            id_offset: offset,
            exclude_ids: exclude,
            password_file: None,
        },
    )
}

fn section() -> impl Strategy<Value = HighAvailability> {
    let preemption = prop_oneof![
        Just(Preemption::WhenSynced),
        Just(Preemption::Never),
        (0..=1_000_000u64).prop_map(|ms| Preemption::Delay(Duration::from_millis(ms))),
    ];
    let email = proptest::option::of((1..4usize, any::<bool>())).prop_map(|email| {
        email.map(|(count, is_ipv6)| HaEmail {
            to: (0..count).map(|at| format!("root+{at}@localhost")).collect(),
            from: "ha@example.com".to_owned(),
            smtp: if is_ipv6 { "[fd00::25]:25" } else { "127.0.0.1:2525" }
                .parse()
                .unwrap(),
        })
    });
    let rest = ("[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}", 0..=MAX_HA_NODES, any::<[bool; 2]>());
    (rest, vip_groups(), preemption, vrrp(), email).prop_map(
        |((name, nodes, [ipv6_nodes, notifies]), groups, preemption, vrrp, email)| {
            let address = |at: usize| {
                if ipv6_nodes {
                    format!("fd00:1::{at}")
                } else {
                    format!("10.1.0.{at}")
                }
            };
            let node = |at| HaNode {
                name: format!("n{at}"),
                address: address(at).parse().unwrap(),
            };
            HighAvailability {
                name,
                mode: HaMode::Keepalived,
                node: None,
                nodes: (1..=nodes).map(node).collect(),
                interface: None,
                groups,
                watch: HaWatch::default(),
                preemption,
                vrrp,
                notify: notifies.then(|| "/bin/true".into()),
                firewall: false,
                email,
                sync: None,
            }
        },
    )
}

fn takes(ns: &Ns, file: &Path, text: &str) -> Result<(), TestCaseError> {
    fs::write(file, text).unwrap();
    let file = file.to_str().unwrap();
    let tested = ns.try_must(&["keepalived", "--config-test", "--vrrp", "--use-file", file], "");
    tested
        .map(drop)
        .map_err(|error| TestCaseError::fail(format!("{error:#}\n{text}")))
}

#[test]
fn keepalived_takes_every_configuration() {
    if !privileged("keepalived_takes_every_configuration", &["ip", "nsenter", "keepalived"]) {
        return;
    }
    let sandbox = Sandbox::new(&KIND).unwrap();
    let ns = sandbox.namespace("node").unwrap();
    ns.ip(
        "link add eth0 type veth peer name eth1\nlink set eth0 up\nlink set eth1 up\naddr add 10.1.0.1/24 dev eth0\n\
           addr add fd00:1::1/64 dev eth0 nodad\naddr add 10.2.0.1/24 dev eth1\n",
    )
    .unwrap();
    let (file, directory) = (sandbox.dir().join("keepalived.conf"), sandbox.dir().join("run"));
    let check: PathBuf = "/bin/true".into();
    let config = Config {
        cases: CASES,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&(section(), any::<bool>()), |(ha, supervised)| {
        let tracking = if supervised {
            Tracking::Directory(directory.to_str().unwrap())
        } else {
            Tracking::Script {
                command: check.to_str().unwrap(),
                interval: ha.watch.interval,
            }
        };
        let node = NodeContext {
            name: "n1",
            interface: "eth0",
            password: None,
            tracking,
        };
        match render(&ha, &node) {
            Ok(text) => takes(&ns, &file, &text),
            // The configuration's parser refuses these two for the same reasons.
            Err(why) => {
                prop_assert!(why.contains("virtual router ids") || why.contains("with `unicast` each group needs one"));
                Ok(())
            }
        }
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
