//! Per-CPU counters of the programs, summed on request.

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use signalbox_common::Reason;

use crate::error::KernelError;

/// Maps `COUNTERS` and `STEER_STATS`.
pub struct Counters {
    exits: PerCpuArray<MapData, u64>,
    steered: PerCpuArray<MapData, u64>,
}

impl Counters {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let mut take = |name: &'static str| {
            let map = ebpf.take_map(name).ok_or(KernelError::NoMap(name))?;
            PerCpuArray::try_from(map).map_err(|e| KernelError::Map {
                name,
                source: Box::new(e),
            })
        };
        Ok(Self {
            exits: take("COUNTERS")?,
            steered: take("STEER_STATS")?,
        })
    }

    /// Returns how often each program ended for each reason.
    #[must_use]
    pub fn exit_counts(&self) -> Vec<(Reason, u64)> {
        exit_counts(&self.exits)
    }

    /// Returns the connections steered to a listener, by its number.
    #[must_use]
    pub fn steered_connections(&self, listener: u32) -> u64 {
        sum(&self.steered, listener)
    }
}

/// Returns how often programs ended for each reason, by a map `COUNTERS` of any copy of the object.
pub(super) fn exit_counts(map: &PerCpuArray<MapData, u64>) -> Vec<(Reason, u64)> {
    Reason::ALL
        .iter()
        .map(|&reason| (reason, sum(map, reason as u32)))
        .collect()
}

pub(super) fn sum(map: &PerCpuArray<MapData, u64>, index: u32) -> u64 {
    map.get(&index, 0).map_or(0, |values| values.iter().sum())
}
