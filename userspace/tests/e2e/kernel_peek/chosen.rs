//! Hosts that the program chooses and cannot connect to, because they have another address family: the worker that gets
//! the connection takes the same host, so that weights stay exact.

use crate::lab;

use std::collections::BTreeMap;

use lab::{Router, SOON, config, eventually, http};

use super::{PEEK, exits, start_with};

#[test]
fn turns_among_hosts_of_both_families_are_exact() {
    let test = "turns_among_hosts_of_both_families_are_exact";
    let Some(lab) = super::lab(test) else { return };
    let _routers = Router::start_all(&lab, &["east-1", "west-1"]);
    // east-1 by IPv4, west-1 by IPv6. First both in one cluster, then one in each of two.
    let one = config::cluster("both", &["balance: round-robin"], &["east-1", "west-1"]);
    let two = config::cluster("east", &[], &["east-1"]) + &config::cluster("west", &[], &["west-1"]);
    for (clusters, route, share) in [(one, "both: 1", 24), (two, "east: 1, west: 3", 12)] {
        let body = format!(
            "{PEEK}\n{}clusters:\n{clusters}routes:\n  - {{ host: a.test, clusters: {{ {route} }} }}\n",
            config::WEB_LISTENERS
        );
        let sb = start_with(&lab, &body, 2);
        sb.wait_healthy(&["east-1", "west-1"]);
        for (at, family_of) in [("10.1.0.1:80", "east-1"), ("[fd00:1::1]:80", "west-1")] {
            let before = [exits(&sb, "routed"), exits(&sb, "passed_up")];
            let mut hosts = BTreeMap::<String, u32>::new();
            for _ in 0..48 {
                *hosts.entry(http::ask(&lab, at, "a.test").field("host")).or_default() += 1;
            }
            let expected = BTreeMap::from([("east-1".to_owned(), share), ("west-1".to_owned(), 48 - share)]);
            assert_eq!(hosts, expected, "{route}, {at}");
            // Connections to the host of the client's family were routed in the kernel.
            let routed = u64::from(hosts[family_of]);
            let is_so =
                || [exits(&sb, "routed") - before[0], exits(&sb, "passed_up") - before[1]] == [routed, 48 - routed];
            assert!(eventually(SOON, is_so), "{route}, {at}: {}", sb.get("/metrics").1);
        }
        assert_eq!(sb.metric("signalbox_kernel_peek_routes"), 2.0);
    }
}
