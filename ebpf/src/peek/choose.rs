//! Choice of a host for a name: the cluster by the route's turns, the host by the cluster's turns or by load.

use signalbox_common::{
    net::atomic,
    peek::abi::{
        MAX_CLUSTER_HOSTS, MAX_PEEK_ROUTES, MAX_ROUTE_CLUSTERS, MAX_TURNS, PeekCluster, PeekConfig, PeekHost,
        PeekReading,
    },
};

use super::maps::{PEEK_CLUSTERS, PEEK_HOSTS, PEEK_ROUTES, PEEK_TICKETS};
use super::{hop::is_ahead, release::UNFIT_TICKS, settings::config};
use crate::cut::skb::tick;

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

/// Whether a host takes connections now.
#[inline(always)]
pub fn is_fit(host: &PeekHost, now: u32) -> bool {
    host.unfit_until == 0 || !is_ahead(host.unfit_until, now, UNFIT_TICKS + 1)
}

/// Number of changes of the tables.
#[inline(always)]
fn version(config: &PeekConfig) -> u32 {
    // SAFETY: aligned, whole; userspace writes it.
    unsafe { (&raw const config.tables).read_volatile() }
}

/// Chooses a host for the name that was read. -1: userspace decides, as it does while the tables change.
#[inline(never)]
pub fn choose(reading: &mut PeekReading) -> i32 {
    let Some(config) = config() else {
        return -1;
    };
    let before = version(config);
    if before & 1 != 0 || try_choose(reading).is_none() || version(config) != before {
        return -1;
    }
    0
}

#[inline(always)]
fn try_choose(reading: &mut PeekReading) -> Option<()> {
    let route = PEEK_ROUTES.get_ptr(&reading.name)?;
    // SAFETY: an element of the map, replaced as a whole.
    let (number, turns, ticket) = unsafe { ((*route).number, (*route).turns, (*route).ticket) };
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
    // SAFETY: an element of the array. Userspace may be writing another version of it: then nothing comes of this choice.
    let cluster = unsafe { &*cluster };
    let turn = draw(MAX_PEEK_ROUTES + index, cluster.turns)?;
    reading.route = number;
    reading.pending.host = if cluster.by_load == 0 {
        let turn = turn as usize;
        if turn >= MAX_TURNS {
            return None;
        }
        u32::from(cluster.turn[turn])
    } else {
        least_loaded(cluster, turn)?
    };
    Some(())
}

/// The host with the fewest connections for its weight; among equals, hosts take turns from `first` on.
#[inline(always)]
fn least_loaded(cluster: &PeekCluster, first: u32) -> Option<u32> {
    let now = tick();
    let (mut best, mut best_load, mut best_weight) = (u32::MAX, 0u64, 1u64);
    let mut i = 0;
    while i < MAX_CLUSTER_HOSTS as u32 {
        if i >= cluster.turns {
            break;
        }
        let mut at = first + i;
        if at >= cluster.turns {
            at -= cluster.turns;
        }
        let at = at as usize;
        if at >= MAX_CLUSTER_HOSTS {
            break;
        }
        let index = u32::from(cluster.turn[at]);
        i += 1;
        let Some(host) = PEEK_HOSTS.get_ptr(index) else {
            continue;
        };
        // SAFETY: an element of the array; numbers are read one by one.
        let host = unsafe { &*host };
        if !is_fit(host, now) {
            continue;
        }
        let (load, weight) = (host.load() + 1, u64::from(host.weight));
        // Compares a/w < b/v as a*v < b*w.
        if best == u32::MAX || load * best_weight < best_load * weight {
            (best, best_load, best_weight) = (index, load, weight);
        }
    }
    (best != u32::MAX).then_some(best)
}
