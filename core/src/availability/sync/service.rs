//! Record of a connection of a layer-4 service in mode `nat`, and the two entries that another balancer makes of it.

use signalbox_common::l4::abi::{mode, state};
use signalbox_common::l4::{L4Flow, decide};
use signalbox_common::net::Key;
use signalbox_common::net::ip::TCP;

/// Bits of the state of each direction that a record carries.
const CARRIED_STATE: u16 = state::FIN | state::RST;

/// An established connection of TCP. Service and host are not named: the target and the host's address say which they
/// are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceRecord {
    /// Client, virtual address, source towards the host, and host.
    pub addresses: [[u32; 4]; 4],
    /// Ports of client and virtual address, and of source and host, each pair as in [`Key::ports`].
    pub ports: [u32; 2],
    /// Bits among [`CARRIED_STATE`] of the client's direction and of the host's.
    pub states: [u16; 2],
    /// Ticks since the last packet.
    pub idle: u32,
}

/// Service and host of a connection, by the numbers of the balancer that reads the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServicePlace {
    /// Number of the service.
    pub service: u16,
    /// Index of the host.
    pub host: u32,
    /// Ticks without a packet after which a flow of the service has ended.
    pub idle_ticks: u32,
}

impl ServiceRecord {
    /// Makes the record of a connection from the entries of its two directions.
    #[must_use]
    pub fn of(key: &Key, flow: &L4Flow, reply: Option<&L4Flow>, tick: u32) -> Self {
        let idle = |flow: &L4Flow| ticks_between(flow.last_seen, tick);
        Self {
            addresses: [key.source, key.destination, flow.source, flow.destination],
            ports: [key.ports, flow.ports],
            states: [flow.state, reply.map_or(0, |reply| reply.state)].map(|state| state & CARRIED_STATE),
            idle: reply.map_or_else(|| idle(flow), |reply| idle(flow).min(idle(reply))),
        }
    }

    /// Key of the client's direction.
    #[must_use]
    pub const fn key(&self) -> Key {
        let [source, destination, ..] = self.addresses;
        Key {
            source,
            destination,
            ports: self.ports[0],
            protocol: TCP,
        }
    }

    /// Key of the host's direction.
    #[must_use]
    pub const fn reply_key(&self) -> Key {
        let [_, _, destination, source] = self.addresses;
        Key {
            source,
            destination,
            ports: self.ports[1].rotate_left(16),
            protocol: TCP,
        }
    }

    /// Whether two records are of the same connection, in the same state.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        (self.addresses, self.ports, self.states) == (other.addresses, other.ports, other.states)
    }

    /// Makes the entries of client's and host's direction. The way to the client is not known: it is looked up, or the
    /// client's next packet shows it.
    #[must_use]
    pub fn entries(&self, place: ServicePlace, tick: u32) -> [L4Flow; 2] {
        let [client, vip, source, host] = self.addresses;
        let flow = L4Flow {
            source,
            destination: host,
            ports: self.ports[1],
            host: place.host,
            service: place.service,
            mode: mode::NAT,
            state: self.states[0] & CARRIED_STATE,
            last_seen: tick.wrapping_sub(self.idle),
            idle_ticks: place.idle_ticks,
            ..L4Flow::default()
        };
        let reply = L4Flow {
            source: vip,
            destination: client,
            ports: self.ports[0].rotate_left(16),
            state: state::REPLY | state::ANSWERED | (self.states[1] & CARRIED_STATE),
            ..flow
        };
        debug_assert_eq!(decide::reverse_key(&flow, TCP), self.reply_key());
        [flow, reply]
    }
}

/// Ticks from one time to another, which wrap: 0 where the first one is a little later.
const fn ticks_between(then: u32, now: u32) -> u32 {
    let ticks = now.wrapping_sub(then);
    if ticks > 1 << 31 { 0 } else { ticks }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The other balancer translates as the first one does, in both directions.
        #[test]
        fn another_balancer_has_the_same_entries(
            addresses: [[u32; 4]; 4],
            ports: [u32; 2],
            bits: [u16; 2],
            times: [u32; 4],
        ) {
            let [client, vip, source, host] = addresses;
            let key = Key { source: client, destination: vip, ports: ports[0], protocol: TCP };
            let [there, idle, reply_idle, here] = times;
            let (idle, reply_idle) = (idle >> 2, reply_idle >> 2);
            let flow = L4Flow {
                source,
                destination: host,
                ports: ports[1],
                host: 9,
                service: 8,
                mode: mode::NAT,
                state: bits[0] & (CARRIED_STATE | state::CONN_CLOSED),
                last_seen: there.wrapping_sub(idle),
                idle_ticks: 55,
                ..L4Flow::default()
            };
            let reply = L4Flow {
                source: vip,
                destination: client,
                ports: ports[0].rotate_left(16),
                state: bits[1] & CARRIED_STATE | state::REPLY | state::ANSWERED,
                last_seen: there.wrapping_sub(reply_idle),
                ..flow
            };
            let record = ServiceRecord::of(&key, &flow, Some(&reply), there);
            prop_assert_eq!(record.key(), key);
            prop_assert_eq!(record.reply_key(), decide::reverse_key(&flow, TCP));
            let place = ServicePlace { service: 8, host: 9, idle_ticks: 55 };
            let made = record.entries(place, here);
            let last_seen = here.wrapping_sub(idle.min(reply_idle));
            prop_assert_eq!(made, [
                L4Flow { last_seen, state: flow.state & CARRIED_STATE, ..flow },
                L4Flow { last_seen, ..reply },
            ]);
            // Of the entries made the same record comes.
            prop_assert!(record.is_alike(&ServiceRecord::of(&key, &made[0], Some(&made[1]), here)));
        }
    }

    #[test]
    fn a_packet_of_this_very_moment_is_no_old_one() {
        let flow = L4Flow {
            last_seen: 101,
            ..L4Flow::default()
        };
        assert_eq!(ServiceRecord::of(&Key::default(), &flow, None, 100).idle, 0);
        assert_eq!(ServiceRecord::of(&Key::default(), &flow, None, 111).idle, 10);
    }
}
