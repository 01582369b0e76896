//! Lists of the clients that the program routes: for routes that treat some clients otherwise (`prefer`, `allow`, and the
//! lists of clusters), and for listeners where rules of packet filters name some. The longest prefix of a client counts,
//! so each prefix has the answer for all lists.

use std::collections::{BTreeMap, HashMap};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use signalbox_common::peek::abi::{CLIENT_FIXED_BITS, CLIENT_IS_ROUTED, MAX_PEEK_CLIENTS, PeekClient};
use signalbox_core::model::claimed::ClusterAllow;
use signalbox_core::model::{Preference, Route};
use signalbox_core::routing::obstacle::PeekObstacle;

use crate::kernel::address::to_words;

/// Entries of `PEEK_CLIENTS`, by length in bits and key.
pub(in super::super) type ClientEntries = HashMap<(u32, PeekClient), u32>;

/// Lists of a route, by which its list of clients is known: routes with the same lists share one.
type Lists<'a> = (&'a [Preference], Option<&'a [IpNet]>, &'a [ClusterAllow]);

/// Lists of clients in the making.
#[derive(Default)]
pub(super) struct ClientLists<'a> {
    numbers: HashMap<Lists<'a>, Result<u16, PeekObstacle>>,
    /// Lists of the clients of listeners.
    of_listeners: HashMap<&'a [(IpNet, bool)], u16>,
    pub(super) entries: ClientEntries,
}

impl<'a> ClientLists<'a> {
    /// Returns the number of a route's list; 0 if the program routes all clients.
    pub(super) fn number_of(&mut self, route: &'a Route) -> Result<u16, PeekObstacle> {
        if !route.treats_clients_differently() {
            return Ok(0);
        }
        let lists: Lists<'a> = (&route.prefer, route.allow.as_deref(), route.cluster_allow());
        if let Some(number) = self.numbers.get(&lists) {
            return *number;
        }
        let number = routed_prefixes(lists).and_then(|prefixes| self.add(prefixes));
        self.numbers.insert(lists, number);
        number
    }

    /// Returns the number of a listener's list: prefixes, and whether the program routes their clients; 0 if there are none,
    /// and it routes all.
    pub(super) fn number_of_listed(&mut self, listed: &'a [(IpNet, bool)]) -> Result<u16, PeekObstacle> {
        if listed.is_empty() {
            return Ok(0);
        }
        if let Some(number) = self.of_listeners.get(listed) {
            return Ok(*number);
        }
        let number = self.add(listed.to_vec())?;
        self.of_listeners.insert(listed, number);
        Ok(number)
    }

    /// Adds a list: prefixes, and whether the program routes the clients for which each is the longest.
    fn add(&mut self, prefixes: Vec<(IpNet, bool)>) -> Result<u16, PeekObstacle> {
        let known = self.numbers.len() + self.of_listeners.len();
        let number = u16::try_from(known + 1).map_err(|_| PeekObstacle::TableFull)?;
        if self.entries.len() + prefixes.len() > MAX_PEEK_CLIENTS as usize {
            return Err(PeekObstacle::TableFull);
        }
        // Clients with IPv4-mapped addresses are IPv4 clients, and no IPv6 prefix has them.
        let prefixes = prefixes.into_iter().filter(|(prefix, _)| !is_mapped(prefix));
        let entries = prefixes.map(|(prefix, is_routed)| {
            let mapped = if prefix.addr().is_ipv4() { 96 } else { 0 };
            let bits = CLIENT_FIXED_BITS + mapped + u32::from(prefix.prefix_len());
            let client = PeekClient::new(number, &to_words(prefix.network()));
            ((bits, client), if is_routed { CLIENT_IS_ROUTED } else { 0 })
        });
        self.entries.extend(entries);
        Ok(number)
    }
}

/// Whether an IPv6 prefix has only IPv4-mapped addresses.
fn is_mapped(prefix: &IpNet) -> bool {
    prefix.prefix_len() >= 96 && prefix.addr().is_ipv6() && prefix.network().to_canonical().is_ipv4()
}

/// Bit of a preference's clients among the lists that have a prefix.
const PREFERRED: u64 = 1;
/// Bit of the first list whose clients alone are served.
const FIRST_ALLOWED: u32 = 1;

/// All prefixes of the lists, and whether the program routes the clients for which each is the longest. It does if all
/// lists of served clients have them, and no preference does.
fn routed_prefixes((prefer, allow, clusters): Lists<'_>) -> Result<Vec<(IpNet, bool)>, PeekObstacle> {
    let all = [Ipv4Net::default().into(), Ipv6Net::default().into()];
    let mut listed: BTreeMap<IpNet, u64> = all.map(|all| (all, 0)).into();
    for net in prefer.iter().flat_map(|preference| &preference.clients) {
        *listed.entry(net.trunc()).or_default() |= PREFERRED;
    }
    // A cluster may have several lists, and serves those who are in each.
    let served = clusters.iter().map(|list| &*list.prefixes);
    let mut required = 0;
    for (nets, at) in allow.into_iter().chain(served).zip(FIRST_ALLOWED..) {
        let bit = 1u64.checked_shl(at).ok_or(PeekObstacle::TableFull)?;
        required |= bit;
        for net in nets {
            *listed.entry(net.trunc()).or_default() |= bit;
        }
    }
    // In order, a prefix comes after those that contain it.
    let mut containing: Vec<(IpNet, u64)> = Vec::new();
    let routed = listed.into_iter().map(|(net, own)| {
        while containing.last().is_some_and(|(outer, _)| !outer.contains(&net)) {
            containing.pop();
        }
        let lists = own | containing.last().map_or(0, |(_, lists)| *lists);
        containing.push((net, lists));
        (net, lists & PREFERRED == 0 && lists & required == required)
    });
    Ok(routed.collect())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::*;
    use proptest::prelude::*;
    use signalbox_core::model::claimed::is_served;

    /// Prefixes that often contain each other.
    fn net() -> impl Strategy<Value = IpNet> {
        prop_oneof![
            (0u8..3, 0u8..3, prop::sample::select(vec![0u8, 8, 16, 24, 32])).prop_map(|(a, b, len)| IpNet::new(
                Ipv4Addr::new(10, a, b, a).into(),
                len
            )
            .unwrap()),
            (0u16..3, prop::sample::select(vec![0u8, 16, 32, 128])).prop_map(|(a, len)| IpNet::new(
                Ipv6Addr::new(a, a, 0, 0, 0, 0, 0, a).into(),
                len
            )
            .unwrap()),
            (0u8..3, prop::sample::select(vec![80u8, 96, 104, 128])).prop_map(|(a, len)| {
                let mapped = Ipv4Addr::new(10, a, a, a).to_ipv6_mapped();
                IpNet::new(mapped.into(), len).unwrap()
            }),
        ]
    }

    fn nets() -> impl Strategy<Value = Vec<IpNet>> {
        prop::collection::vec(net(), 0..4)
    }

    fn client() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (9u8..12, 0u8..3, 0u8..3).prop_map(|(a, b, c)| Ipv4Addr::new(a, b, c, b).into()),
            (0u16..4, 0u16..3).prop_map(|(a, b)| Ipv6Addr::new(a, a, 0, 0, 0, 0, 0, b).into()),
        ]
    }

    /// Value of the longest prefix of a client, as the kernel finds it.
    fn found(entries: &ClientEntries, number: u16, client: IpAddr) -> Option<u32> {
        let asked = PeekClient::new(number, &to_words(client));
        let bits_of = |client: &PeekClient| {
            let words = client.address.map(u32::from_be);
            words.iter().fold(0u128, |bits, word| bits << 32 | u128::from(*word))
        };
        let is_of = |bits: u32, key: &PeekClient| {
            let free = 128 + CLIENT_FIXED_BITS - bits;
            let differs = bits_of(key) ^ bits_of(&asked);
            (key.list, key.family) == (asked.list, asked.family) && differs.checked_shr(free).unwrap_or(0) == 0
        };
        let matching = entries.iter().filter(|((bits, key), _)| is_of(*bits, key));
        matching.max_by_key(|((bits, _), _)| *bits).map(|(_, value)| *value)
    }

    proptest! {
        /// The program routes a client exactly if no list treats the client otherwise.
        #[test]
        fn the_program_routes_whom_no_list_treats_otherwise(
            preferred in prop::collection::vec(nets(), 0..3),
            allow in prop::option::of(nets()),
            served in prop::collection::vec(nets(), 0..3),
            clients in prop::collection::vec(client(), 1..20),
        ) {
            let prefer: Vec<_> = preferred
                .into_iter()
                .map(|clients| Preference { cluster: 0, clients })
                .collect();
            let clusters: Vec<_> = served
                .into_iter()
                .enumerate()
                .map(|(cluster, prefixes)| ClusterAllow { cluster, prefixes })
                .collect();
            let mut lists = ClientLists::default();
            let prefixes = routed_prefixes((&prefer, allow.as_deref(), &clusters)).unwrap();
            let number = lists.add(prefixes).unwrap();
            for client in clients {
                let is_in = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&client));
                let expected = !prefer.iter().any(|preference| is_in(&preference.clients))
                    && allow.as_deref().is_none_or(is_in)
                    && (0..clusters.len()).all(|cluster| is_served(&clusters, cluster, client));
                let value = found(&lists.entries, number, client);
                prop_assert_eq!(value, Some(u32::from(expected)), "{}", client);
            }
        }
    }
}
