//! Interfaces that routes use, as netlink reports them.

use aya::programs::ProgramType;
use signalbox::kernel::interfaces;
use signalbox::kernel::netlink::LinkWatch;

use crate::namespace::in_own_namespace;

#[test]
fn interfaces_that_routes_use_are_found_and_others_are_not() {
    let ip = [
        "link add v4 type veth peer name unused",
        "link add v6 type veth peer name hop-a",
        "link add hop-b type veth peer name far",
        "tuntap add dev tunnel mode tun",
        "link set v4 mtu 1400 up",
        "link set unused up",
        "link set v6 up",
        "link set hop-a up",
        "link set hop-b up",
        "link set far up",
        "link set tunnel up",
        "addr add 192.0.2.1/24 dev v4",
        "addr add fd00::1/64 dev v6 nodad",
        "route add 203.0.113.0/24 nexthop dev hop-a nexthop dev hop-b",
        // No Ethernet.
        "route add 198.51.100.0/24 dev tunnel",
    ];
    let name = "interfaces_that_routes_use_are_found_and_others_are_not";
    in_own_namespace(name, ProgramType::SchedClassifier, &ip, || {
        let mut routed = interfaces::routed().unwrap();
        routed.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<_> = routed.iter().map(|one| (one.name.as_str(), one.mtu)).collect();
        assert_eq!(found, [("hop-a", 1500), ("hop-b", 1500), ("v4", 1400), ("v6", 1500)]);
        let mut all: Vec<_> = interfaces::all().into_iter().map(|one| one.name).collect();
        all.sort();
        assert_eq!(all, ["far", "hop-a", "hop-b", "unused", "v4", "v6"]);
        assert!(routed.iter().all(interfaces::Interface::exists));
    });
}

#[test]
fn the_kernel_tells_of_an_interface_and_of_its_first_route() {
    let name = "the_kernel_tells_of_an_interface_and_of_its_first_route";
    in_own_namespace(name, ProgramType::SchedClassifier, &[], || {
        let ip = |words: &str| {
            let status = std::process::Command::new("ip").args(words.split(' ')).status();
            assert!(status.unwrap().success(), "ip {words}");
        };
        let mut watch = LinkWatch::open().unwrap();
        for words in [
            "link add late type veth peer name far",
            "link set late up",
            "link set far up",
            "addr add 192.0.2.1/24 dev late",
            "link del late",
        ] {
            ip(words);
            // Waits forever where nothing is reported.
            watch.wait().unwrap();
        }
    });
}
