//! Whole configurations, as text.

use super::*;
use crate::availability::ha::ranges;
use crate::availability::ha::testing::ha;
use crate::model::ha::{FloatingSource, HaEmail};

fn node(name: &str) -> NodeContext<'_> {
    NodeContext {
        name,
        interface: "eth0",
        password: None,
        tracking: Tracking::Directory("/run/signalbox-ha"),
    }
}

#[test]
fn a_group_of_both_address_families_is_two_synced_instances() {
    let mut ha = ha(2, 1);
    ha.groups[0].vips = ranges::parse("10.1.1.5,fd00::5").unwrap();
    ha.groups[0].sources = vec![
        FloatingSource {
            address: "10.2.0.5".parse().unwrap(),
            prefix: 24,
            interface: Some("eth1".to_owned()),
        },
        FloatingSource {
            address: "fd00:2::5".parse().unwrap(),
            prefix: 64,
            interface: None,
        },
    ];
    ha.groups[0].prefer = Some("n1".to_owned());
    assert_eq!(
        render(&ha, &node("n1")).unwrap(),
        include_str!("tests/both_families.conf")
    );
}

#[test]
fn unicast_of_version_2_with_a_password_and_mail() {
    let mut ha = ha(3, 1);
    ha.groups[0].vips = ranges::parse("10.1.1.5,fd00::5").unwrap();
    ha.groups[0].prefer = Some("n2".to_owned());
    ha.vrrp.version = VrrpVersion::V2;
    ha.vrrp.advert = Duration::from_millis(1500);
    ha.vrrp.unicast = true;
    ha.vrrp.id_offset = 10;
    ha.vrrp.exclude_ids = [11].into();
    ha.preemption = Preemption::Delay(Duration::from_secs(300));
    ha.email = Some(HaEmail {
        to: vec!["root@localhost".to_owned()],
        from: "ha@example.com".to_owned(),
        smtp: "10.0.0.25:2525".parse().unwrap(),
    });
    assert_eq!(render(&ha, &node("n2")).unwrap(), include_str!("tests/unicast.conf"));
    ha.groups[0].vips = ranges::parse("fd00::5").unwrap();
    assert!(
        render(&ha, &node("n2"))
            .unwrap_err()
            .contains("group `g1` has no IPv4 address")
    );
}

#[test]
fn a_script_in_place_of_a_supervisor() {
    let mut ha = ha(0, 1);
    ha.preemption = Preemption::Never;
    ha.notify = Some("/etc/signalbox/notify".into());
    ha.groups[0].vips = ranges::parse("10.1.1.1-22").unwrap();
    let node = NodeContext {
        tracking: Tracking::Script {
            command: "/usr/bin/signalbox ha check",
            interval: Duration::from_secs(2),
        },
        ..node("n1")
    };
    assert_eq!(render(&ha, &node).unwrap(), include_str!("tests/script.conf"));
}

#[test]
fn a_password_is_cut_between_characters() {
    let mut ha = ha(0, 1);
    ha.vrrp.version = VrrpVersion::V2;
    let of = |password| NodeContext {
        password: Some(password),
        ..node("n1")
    };
    assert!(render(&ha, &of("secret")).unwrap().contains("auth_pass \"secret\"\n"));
    assert!(
        render(&ha, &of("geheimnüsse"))
            .unwrap()
            .contains("auth_pass \"geheimn\"\n")
    );
}
