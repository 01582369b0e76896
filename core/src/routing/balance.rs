//! Chooses the host of a cluster that takes a connection.

use signalbox_common::hash;

use crate::model::Balance;
use crate::routing::maglev;
use crate::routing::schedule::Schedule;

/// The hosts of a cluster that may get a new connection, ready to choose from.
#[derive(Clone, Debug)]
pub struct HostPicker {
    balance: Balance,
    /// Pairs of (index of the host in its cluster, weight).
    hosts: Vec<(u16, u32)>,
    schedule: Schedule,
    maglev_table: Box<[u16]>,
}

/// How hosts are chosen, for a choice that is made elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostTurns<'a> {
    /// Hosts in turns.
    ByTurn(&'a [u16]),
    /// Host with the fewest connections for its weight, among `(host, weight)`.
    ByLoad(&'a [(u16, u32)]),
    /// Of two hosts of random turns the one with fewer connections for its weight.
    RandomTwo(&'a [u16]),
    /// Host of the Maglev table at the hash of the client's address, among `(host, weight)`.
    Maglev(&'a [u16], &'a [(u16, u32)]),
}

/// Inputs of one choice, besides the hosts.
#[derive(Clone, Copy, Debug)]
pub struct PickContext {
    /// Number that goes up by one with each choice in this cluster.
    pub ticket: u64,
    /// Random bits.
    pub random: u64,
    /// Hash of the client's address.
    pub source_hash: u64,
}

impl HostPicker {
    /// Prepares the choice among `(index, weight, address)`.
    #[must_use]
    pub fn new(balance: Balance, hosts: &[(u16, u32, [u8; 16])]) -> Self {
        let weights: Vec<_> = hosts.iter().map(|&(index, weight, _)| (index, weight)).collect();
        let slots = match balance {
            Balance::Maglev => {
                let candidates: Vec<_> = hosts
                    .iter()
                    .map(|&(index, weight, identity)| maglev::Candidate {
                        index,
                        weight,
                        identity,
                    })
                    .collect();
                maglev::build(&candidates)
            }
            _ => Box::default(),
        };
        let turns = match balance {
            Balance::RoundRobin | Balance::RandomTwo => Schedule::new(&weights),
            _ => Schedule::default(),
        };
        Self {
            balance,
            hosts: weights,
            schedule: turns,
            maglev_table: slots,
        }
    }

    /// Whether no host may get a connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The hosts, with their weights.
    #[must_use]
    pub fn hosts(&self) -> &[(u16, u32)] {
        &self.hosts
    }

    /// How the hosts are chosen.
    #[must_use]
    pub fn turns(&self) -> HostTurns<'_> {
        match self.balance {
            Balance::LeastConnections => HostTurns::ByLoad(&self.hosts),
            Balance::RoundRobin => HostTurns::ByTurn(self.schedule.choices()),
            Balance::RandomTwo => HostTurns::RandomTwo(self.schedule.choices()),
            Balance::Maglev => HostTurns::Maglev(&self.maglev_table, &self.hosts),
        }
    }

    /// Chooses a host not in `tried`; `load` says how many connections a host has.
    pub fn pick(&self, draw: PickContext, tried: &[u16], load: impl Fn(u16) -> u32) -> Option<u16> {
        let first = match self.balance {
            Balance::LeastConnections => None,
            Balance::RoundRobin => self.schedule.draw(draw.ticket),
            Balance::RandomTwo => self.random_two(draw.random, tried, &load),
            Balance::Maglev => self
                .maglev_table
                .get(draw.source_hash as usize % self.maglev_table.len().max(1))
                .copied(),
        };
        match first {
            Some(host) if !tried.contains(&host) => Some(host),
            // Least connections; every other algorithm falls back to it once its host has failed.
            _ => self.least_connections(draw.ticket, tried, &load),
        }
    }

    /// The host with the least load for its weight; among equals, hosts take turns.
    fn least_connections(&self, ticket: u64, tried: &[u16], load: &impl Fn(u16) -> u32) -> Option<u16> {
        let start = ticket as usize % self.hosts.len().max(1);
        let (before, from) = self.hosts.split_at(start);
        let mut best: Option<(u64, u64, u16)> = None;
        for &(host, weight) in from.iter().chain(before) {
            if tried.contains(&host) {
                continue;
            }
            let (would_have, weight) = (u64::from(load(host)) + 1, u64::from(weight));
            // Compares a/w < b/v as a*v < b*w.
            if best.is_none_or(|(least, of, _)| would_have * of < least * weight) {
                best = Some((would_have, weight, host));
            }
        }
        best.map(|(_, _, host)| host)
    }

    fn random_two(&self, random: u64, tried: &[u16], load: &impl Fn(u16) -> u32) -> Option<u16> {
        let total: u64 = self.hosts.iter().map(|&(_, weight)| u64::from(weight)).sum();
        let draw = |bits: u64| {
            let mut at = hash::mix(bits) % total.max(1);
            self.hosts.iter().find(|&&(_, weight)| {
                let hit = at < u64::from(weight);
                at = at.saturating_sub(u64::from(weight));
                hit
            })
        };
        let (a, b) = (draw(random)?, draw(random ^ u64::MAX)?);
        let (a, b) = if tried.contains(&a.0) { (b, b) } else { (a, b) };
        let better = |x: &(u16, u32), y: &(u16, u32)| {
            (u64::from(load(x.0)) + 1) * u64::from(y.1) <= (u64::from(load(y.0)) + 1) * u64::from(x.1)
        };
        Some(if better(a, b) || tried.contains(&b.0) { a.0 } else { b.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: PickContext = PickContext {
        ticket: 0,
        random: 1,
        source_hash: 1,
    };

    fn choices(balance: Balance, weights: &[u32]) -> HostPicker {
        let hosts: Vec<_> = weights
            .iter()
            .enumerate()
            .map(|(i, &w)| (i as u16, w, [i as u8; 16]))
            .collect();
        HostPicker::new(balance, &hosts)
    }

    #[test]
    fn least_connections_uses_load_per_weight_and_rotates_on_ties() {
        let c = choices(Balance::LeastConnections, &[1, 2, 1]);
        let load = [3, 5, 3];
        assert_eq!(c.pick(AT, &[], |h| load[h as usize]), Some(1), "6/2 beats 4/1");
        assert_eq!(c.pick(AT, &[1], |h| load[h as usize]), Some(0));
        assert_eq!(
            c.pick(PickContext { ticket: 2, ..AT }, &[1], |h| load[h as usize]),
            Some(2)
        );
        assert_eq!(c.pick(AT, &[0, 1, 2], |_| 0), None);
    }

    #[test]
    fn least_connections_spreads_ten_and_the_next_goes_to_the_least() {
        let c = choices(Balance::LeastConnections, &[1, 1]);
        let mut load = [0u32; 2];
        for ticket in 0..10 {
            let host = c.pick(PickContext { ticket, ..AT }, &[], |h| load[h as usize]).unwrap();
            load[host as usize] += 1;
        }
        assert_eq!(load, [5, 5]);
        load[0] = 4;
        assert_eq!(c.pick(AT, &[], |h| load[h as usize]), Some(0));
    }

    #[test]
    fn round_robin_honours_weights_exactly() {
        let c = choices(Balance::RoundRobin, &[1, 2]);
        let second = (0..300)
            .filter(|&ticket| c.pick(PickContext { ticket, ..AT }, &[], |_| 0) == Some(1))
            .count();
        assert_eq!(second, 200);
    }

    #[test]
    fn random_two_prefers_the_less_loaded_and_skips_the_tried() {
        let c = choices(Balance::RandomTwo, &[1, 1]);
        let idle = (0..2000)
            .filter(|&random| c.pick(PickContext { random, ..AT }, &[], |h| u32::from(h == 0) * 50) == Some(1))
            .count();
        assert!((1400..1600).contains(&idle), "three in four: {idle}");
        for random in 0..100 {
            assert_eq!(c.pick(PickContext { random, ..AT }, &[1], |_| 0), Some(0));
        }
    }

    #[test]
    fn maglev_keeps_a_client_with_its_host_while_others_come_and_go() {
        let three = choices(Balance::Maglev, &[1, 1, 1]);
        let hosts: Vec<_> = [0u16, 1].iter().map(|&i| (i, 1, [i as u8; 16])).collect();
        let two = HostPicker::new(Balance::Maglev, &hosts);
        let (mut kept, mut of) = (0, 0);
        for source in 0..1000u64 {
            let draw = PickContext {
                source_hash: hash::mix(source),
                ..AT
            };
            let before = three.pick(draw, &[], |_| 0).unwrap();
            if before != 2 {
                of += 1;
                kept += u32::from(two.pick(draw, &[], |_| 0) == Some(before));
            }
        }
        assert!(kept * 100 > of * 97, "{kept} of {of} stayed");
    }
}
