//! The programs' per-CPU counters, summed when somebody asks.

use aya::Ebpf;
use aya::maps::{MapData, PerCpuArray};
use signalbox_common::Reason;

use super::object::KernelError;

/// `COUNTERS` and `STEERED`.
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
            steered: take("STEERED")?,
        })
    }

    /// How often each program ended in each way.
    #[must_use]
    pub fn exits(&self) -> Vec<(Reason, u64)> {
        Reason::ALL
            .iter()
            .map(|&reason| (reason, sum(&self.exits, reason as u32)))
            .collect()
    }

    /// Connections steered to a listener, by its number.
    #[must_use]
    pub fn steered(&self, listener: u32) -> u64 {
        sum(&self.steered, listener)
    }
}

fn sum(map: &PerCpuArray<MapData, u64>, index: u32) -> u64 {
    map.get(&index, 0).map_or(0, |values| values.iter().sum())
}
