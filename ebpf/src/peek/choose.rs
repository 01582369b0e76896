//! Choice of a host for a name: the cluster by the route's turns, the host as the cluster is balanced.

use aya_ebpf::{helpers::bpf_get_prandom_u32, maps::lpm_trie::Key};
use signalbox_common::{
    hash,
    net::{
        atomic,
        bounded_loop::{BoundedLoop as _, Round},
    },
    peek::abi::{
        CLIENT_FIXED_BITS, CLIENT_IS_ROUTED, MAGLEV_SLOTS, MAX_CLUSTER_HOSTS, MAX_PEEK_ROUTES, MAX_ROUTE_CLUSTERS,
        MAX_TURNS, PeekClient, PeekClientKey, PeekCluster, PeekConfig, PeekHost, PeekLeast, PeekReading, PeekRoute,
        balance,
    },
};

use super::maps::{PEEK_CLIENTS, PEEK_CLUSTERS, PEEK_HOSTS, PEEK_MAGLEV, PEEK_ROUTES, PEEK_TICKETS};
use super::{kernel_loop::KernelLoop, limits, read::forget, settings::config, wildcard};
use crate::{cut::skb::tick, packet_view::hide_from_compiler};

/// Next turn of `turns`.
#[inline(always)]
fn draw(ticket: u32, turns: u32) -> Option<u32> {
    let counter = PEEK_TICKETS.get_ptr_mut(ticket)?;
    if turns == 0 {
        return None;
    }
    // SAFETY: an element of the array, changed atomically.
    let number = atomic::fetch_add(unsafe { &mut *counter }, 1);
    Some((number % u64::from(turns)) as u32)
}

/// Whether a host takes connections of this program now.
#[inline(always)]
const fn takes(host: &PeekHost, now: u32) -> bool {
    host.is_fit(now) && !host.is_away(now)
}

/// Number of changes of the tables.
#[inline(always)]
pub fn version(config: &PeekConfig) -> u32 {
    // SAFETY: aligned, whole; userspace writes it.
    unsafe { (&raw const config.tables).read_volatile() }
}

/// Chooses a host for the name that was read, and the client's address. `list`: that of the listener's clients. -1:
/// userspace decides, also while the tables change.
#[inline(never)]
pub fn choose(reading: &mut PeekReading, client: &[u32; 4], list: u32) -> i32 {
    let Some(config) = config() else {
        return -1;
    };
    let before = version(config);
    let is_served = list == 0 || is_routed(list as u16, client, &mut reading.client);
    if before & 1 != 0 || !is_served || try_choose(reading, client).is_none() || version(config) != before {
        return -1;
    }
    0
}

/// The route of the name that was read.
#[inline(always)]
pub fn route_of(reading: &mut PeekReading) -> Option<*const PeekRoute> {
    match PEEK_ROUTES.get_ptr(&reading.name) {
        Some(route) => Some(route),
        None => wildcard::find(reading),
    }
}

#[inline(always)]
fn try_choose(reading: &mut PeekReading, client: &[u32; 4]) -> Option<()> {
    let route = route_of(reading)?;
    // SAFETY: an element of the map, replaced as a whole.
    let (number, turns, ticket, clients) =
        unsafe { ((*route).number, (*route).turns, (*route).ticket, (*route).clients) };
    // SAFETY: as above.
    reading.limits = u32::from(unsafe { (*route).limits });
    if clients != 0 && !is_routed(clients, client, &mut reading.client) {
        return None;
    }
    let turn = draw(ticket, turns)? as usize;
    if turn >= MAX_TURNS {
        return None;
    }
    // SAFETY: as above; `turn` is within the array.
    let which = usize::from(unsafe { (*route).turn[turn] });
    if which >= MAX_ROUTE_CLUSTERS {
        return None;
    }
    // SAFETY: as above.
    let index = u32::from(unsafe { (*route).clusters[which] });
    let cluster = PEEK_CLUSTERS.get_ptr(index)?;
    // SAFETY: an element of the array. Userspace may be writing another version of it: this choice is then discarded.
    let cluster = unsafe { &*cluster };
    let turn = draw(MAX_PEEK_ROUTES + index, cluster.turns)?;
    reading.route = number;
    reading.max_host_connections = cluster.max_host_connections;
    reading.queue = cluster.queue;
    reading.parts = cluster.proxy;
    let host = match cluster.balance {
        balance::TURNS => host_of(cluster, turn)?,
        balance::LEAST_CONNECTIONS => least_loaded(cluster, turn, reading)?,
        balance::RANDOM_TWO => random_two(cluster)?,
        balance::MAGLEV => {
            let table = PEEK_MAGLEV.get_ptr(cluster.maglev)?;
            let slot = hide_from_compiler((hash::words(0, client) % MAGLEV_SLOTS as u64) as u32) as usize;
            if slot >= MAGLEV_SLOTS {
                return None;
            }
            // SAFETY: an element of the array, as the cluster's; `slot` is within it.
            host_of(cluster, unsafe { (*table).slot[slot] }.into())?
        }
        _ => return None,
    };
    // A client of a Maglev table has another host of its own, too.
    let is_sticky = cluster.balance == balance::MAGLEV;
    reading.pending.host = present_host(
        cluster,
        host,
        reading,
        if is_sticky { hash::words(1, client) } else { 0 },
    )?;
    Some(())
}

/// Host of a connection for which one was drawn: another one where that refuses connections, or does not answer. The
/// drawn one where all of the next hosts do. `place`: where the search begins; 0: anywhere.
#[inline(always)]
fn present_host(cluster: &PeekCluster, drawn: u32, reading: &mut PeekReading, place: u64) -> Option<u32> {
    let now = tick();
    // SAFETY: an element of the array; numbers are read one by one.
    if !unsafe { &*PEEK_HOSTS.get_ptr(drawn)? }.is_away(now) {
        return Some(drawn);
    }
    // SAFETY: reads a number.
    let place = if place == 0 {
        unsafe { bpf_get_prandom_u32() }
    } else {
        place as u32
    };
    reading.least = PeekLeast::new(place.checked_rem(cluster.turns)?, now);
    Some(match next_present(cluster, reading) {
        PeekLeast::NONE => drawn,
        host => host,
    })
}

/// The first host that takes connections, from the turn in `reading.least` on; [`PeekLeast::NONE`] where there is none.
#[inline(never)]
fn next_present(cluster: &PeekCluster, reading: &mut PeekReading) -> u32 {
    let mut hosts = TurnRounds { cluster, reading };
    KernelLoop::repeat(MAX_TURNS as u32, &mut hosts);
    hosts.reading.least.host
}

struct TurnRounds<'a> {
    cluster: &'a PeekCluster,
    reading: &'a mut PeekReading,
}

impl Round for TurnRounds<'_> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let least = &mut self.reading.least;
        if least.compared >= self.cluster.turns {
            return false;
        }
        if let Some(host) = present(self.cluster, least) {
            least.host = host;
            return false;
        }
        least.next(self.cluster.turns);
        forget(self.reading);
        true
    }
}

/// The host of the next turn, if it takes connections.
#[inline(always)]
fn present(cluster: &PeekCluster, least: &PeekLeast) -> Option<u32> {
    let index = host_of(cluster, hide_from_compiler(least.turn))?;
    // SAFETY: an element of the array; numbers are read one by one.
    takes(unsafe { &*PEEK_HOSTS.get_ptr(index)? }, least.began).then_some(index)
}

/// Whether a list leaves a client's connections to this program.
#[inline(always)]
fn is_routed(list: u16, client: &[u32; 4], key: &mut PeekClientKey) -> bool {
    key.bits = CLIENT_FIXED_BITS + 128;
    key.client = PeekClient::new(list, client);
    // SAFETY: of the same layout: a length in bits, and the key.
    let key = unsafe { &*core::ptr::from_ref(key).cast::<Key<PeekClient>>() };
    PEEK_CLIENTS.get(key) == Some(&CLIENT_IS_ROUTED)
}

/// Whether a listener's list leaves a client's connections to the kernel, or is changing. `before`: version of the tables
/// when the number of the list was read.
#[inline(always)]
pub fn is_left(config: &PeekConfig, before: u32, list: u16, client: &[u32; 4]) -> bool {
    in_list(list.into(), client) == 0 || before & 1 != 0 || version(config) != before
}

#[inline(never)]
fn in_list(list: u32, client: &[u32; 4]) -> u32 {
    let mut key = PeekClientKey {
        bits: 0,
        client: PeekClient::new(0, client),
    };
    is_routed(list as u16, client, &mut key).into()
}

/// Element of `PEEK_HOSTS` of a turn.
#[inline(always)]
fn host_of(cluster: &PeekCluster, turn: u32) -> Option<u32> {
    let turn = turn as usize;
    (turn < MAX_TURNS).then(|| cluster.turn[turn].into())
}

/// Of the hosts of two random turns the one with fewer connections for its weight, of those that take connections.
#[inline(always)]
fn random_two(cluster: &PeekCluster) -> Option<u32> {
    let now = tick();
    let (first, second) = (random_host(cluster)?, random_host(cluster)?);
    let (a, b) = (PEEK_HOSTS.get_ptr(first)?, PEEK_HOSTS.get_ptr(second)?);
    // SAFETY: elements of the array; numbers are read one by one.
    let (a, b) = unsafe { (&*a, &*b) };
    let is_better = (load(b)? + 1) * u64::from(a.weight) < (load(a)? + 1) * u64::from(b.weight);
    Some(if takes(b, now) && (is_better || !takes(a, now)) {
        second
    } else {
        first
    })
}

/// Connections of a host, those in the making among them.
#[inline(always)]
fn load(host: &PeekHost) -> Option<u64> {
    limits::read(host.count)
}

/// The host of a random turn.
#[inline(always)]
fn random_host(cluster: &PeekCluster) -> Option<u32> {
    if cluster.turns == 0 {
        return None;
    }
    // SAFETY: reads a number.
    let random = unsafe { bpf_get_prandom_u32() };
    host_of(cluster, random % cluster.turns)
}

/// The host with the fewest connections for its weight. Among equals, hosts get turns from `first` on.
#[inline(never)]
fn least_loaded(cluster: &PeekCluster, first: u32, reading: &mut PeekReading) -> Option<u32> {
    reading.least = PeekLeast::new(first, tick());
    let mut hosts = HostRounds { cluster, reading };
    KernelLoop::repeat(MAX_CLUSTER_HOSTS as u32, &mut hosts);
    let host = hosts.reading.least.host;
    (host != PeekLeast::NONE).then_some(host)
}

struct HostRounds<'a> {
    cluster: &'a PeekCluster,
    reading: &'a mut PeekReading,
}

impl Round for HostRounds<'_> {
    #[inline(always)]
    fn round(&mut self) -> bool {
        let least = &mut self.reading.least;
        if least.compared >= self.cluster.turns {
            return false;
        }
        compare(self.cluster, least);
        least.next(self.cluster.turns);
        forget(self.reading);
        true
    }
}

/// Compares the host of the next turn with the least loaded one so far.
#[inline(always)]
fn compare(cluster: &PeekCluster, least: &mut PeekLeast) -> Option<()> {
    let turn = hide_from_compiler(least.turn) as usize;
    if turn >= MAX_CLUSTER_HOSTS {
        return None;
    }
    let index = u32::from(cluster.turn[turn]);
    // SAFETY: an element of the array; numbers are read one by one.
    let host = unsafe { &*PEEK_HOSTS.get_ptr(index)? };
    if takes(host, least.began) {
        least.compare(index, load(host)? + 1, host.weight);
    }
    Some(())
}
