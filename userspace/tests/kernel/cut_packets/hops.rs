//! Destination of a forwarded packet: the next hop that is known, while it is fresh.

use std::fs;

use signalbox_common::cut::CutFlow;

use super::clock::ticks;
use super::flows::macs;
use super::packet::Packet;
use super::scene::{FROM_CLIENT, LEG_B, Scene, ip, over_both};

/// Addresses of a router's interface at leg B, and of our own.
const NEXT: [u8; 12] = [2, 0, 0, 0, 0, 0x77, 2, 0, 0, 0, 0, 0x78];

#[test]
fn a_next_hop_that_has_grown_old_is_looked_up() {
    over_both(|mut scene| {
        scene.route();
        scene.neighbour("replace");
        scene.put(&scene.lost());
        let before = ticks();
        let sent = scene.client_sends(5, 5);
        let forwarded = Packet {
            macs: NEXT,
            ..scene.host_receives(5, 5)
        };
        scene.arrives(&sent).forwarded_as(&forwarded);
        let way = scene.flow_now().dirs[0];
        assert_eq!((way.hop_ifindex, way.macs), (LEG_B, macs(NEXT)));
        assert!(
            way.hop_expires.wrapping_sub(before).wrapping_sub(950) <= ticks() - before,
            "about a second"
        );
        scene.neighbour("del");
        scene.arrives(&sent).forwarded_as(&forwarded);
    });
}

/// The kernel has to find the neighbour: the packet goes by the kernel's own output path, which writes the addresses.
#[test]
fn without_a_neighbour_only_the_interface_is_known() {
    over_both(|mut scene| {
        scene.route();
        let lost = scene.lost();
        scene.put(&lost);
        let left_to_the_kernel = Packet {
            macs: FROM_CLIENT,
            ..scene.host_receives(5, 5)
        };
        scene
            .arrives(&scene.client_sends(5, 5))
            .forwarded_as(&left_to_the_kernel);
        let way = scene.flow_now().dirs[0];
        let lost = lost.dirs[0];
        assert_eq!(
            (way.hop_ifindex, way.macs, way.hop_expires),
            (LEG_B, lost.macs, lost.hop_expires)
        );
    });
}

#[test]
fn without_a_route_the_last_interface_is_tried() {
    over_both(|mut scene| {
        let lost = scene.lost();
        scene.put(&lost);
        let left_to_the_kernel = Packet {
            macs: FROM_CLIENT,
            ..scene.host_receives(5, 5)
        };
        scene
            .arrives(&scene.client_sends(5, 5))
            .forwarded_as(&left_to_the_kernel);
        assert_eq!(scene.flow_now().dirs[0].hop_ifindex, lost.dirs[0].hop_ifindex);
    });
}

impl Scene {
    /// A flow whose next hop to the host is old, and wrong.
    fn lost(&self) -> CutFlow {
        let mut flow = self.flow();
        flow.dirs[0].hop_expires = ticks().wrapping_sub(1);
        flow.dirs[0].hop_ifindex = 99;
        flow
    }

    /// The machine forwards, and the host is reached by leg B.
    fn route(&self) {
        for family in ["ipv4", "ipv6"] {
            fs::write(format!("/proc/sys/net/{family}/conf/all/forwarding"), "1").unwrap();
        }
        ip("link set leg-a up");
        ip("link set leg-b address 02:00:00:00:00:78 up");
        ip(if self.is_ipv4() {
            "addr replace 10.200.100.1/24 dev leg-b"
        } else {
            "addr replace fd00:ffee::1/64 dev leg-b nodad"
        });
    }

    fn neighbour(&self, command: &str) {
        let host = self.host.ip();
        ip(&format!(
            "neigh {command} {host} lladdr 02:00:00:00:00:77 dev leg-b nud permanent"
        ));
    }
}
