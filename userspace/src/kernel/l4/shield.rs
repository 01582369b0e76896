//! The shield's maps, by what is asked of them. What is decided stands in `signalbox_common::shield`.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::{Mutex, PoisonError};

use aya::Ebpf;
use aya::maps::lpm_trie::Key as LpmKey;
use aya::maps::{MapData, PerCpuArray, RingBuf};
use signalbox_common::l4::Target;
use signalbox_common::shield::abi::Tally;
use signalbox_common::shield::prefixes::Node;
use signalbox_common::shield::{Bucket, CrowdKey, Dropped, Guard, Settings};
use signalbox_common::steer::{STEER_FIXED_BITS, SteerKey};

use super::outer;
use crate::kernel::map::{MapFd, Mapped};
use crate::kernel::object::{KernelError, map_fd};

/// The maps.
pub struct Shield {
    ports: MapFd,
    targets: MapFd,
    prefixed: MapFd,
    guards: MapFd,
    settings: MapFd,
    tables: MapFd,
    sources: MapFd,
    crowd: MapFd,
    tally: PerCpuArray<MapData, Tally>,
    samples: Mutex<RingBuf<MapData>>,
}

impl Shield {
    /// Those of a loaded object.
    pub fn of(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let unusable = |name: &'static str| {
            move |e| KernelError::Map {
                name,
                source: Box::new(e),
            }
        };
        let fd = |name| map_fd(ebpf, name);
        let [ports, targets, prefixed, guards] = [
            fd("SHIELD_PORTS")?,
            fd("SHIELD_TARGETS")?,
            fd("SHIELD_PREFIXED")?,
            fd("SHIELD_GUARDS")?,
        ];
        let [settings, tables, sources, crowd] = [
            fd("SHIELD_SETTINGS")?,
            fd("SHIELD_TABLES")?,
            fd("SHIELD_SOURCES")?,
            fd("SHIELD_CROWD")?,
        ];
        let mut take = |name: &'static str| ebpf.take_map(name).ok_or(KernelError::NoMap(name));
        let tally = PerCpuArray::try_from(take("SHIELD_TALLY")?).map_err(unusable("SHIELD_TALLY"))?;
        let samples = RingBuf::try_from(take("SHIELD_SAMPLES")?).map_err(unusable("SHIELD_SAMPLES"))?;
        Ok(Self {
            ports,
            targets,
            prefixed,
            guards,
            settings,
            tables,
            sources,
            crowd,
            tally,
            samples: Mutex::new(samples),
        })
    }

    /// Says whether 64 ports are guarded: see `PortBit`.
    pub fn set_ports(&self, word: u32, bits: u64) -> io::Result<()> {
        self.ports.update(&word, &bits)
    }

    /// Who guards an address and port.
    pub fn set_target(&self, target: &Target, guard: Option<u32>) -> io::Result<()> {
        match guard {
            Some(guard) => self.targets.update(target, &guard),
            None => self.targets.delete(target),
        }
    }

    /// Who guards a prefix, of so many bits, and port.
    pub fn set_prefixed(&self, bits: u32, place: &SteerKey, guard: Option<u32>) -> io::Result<()> {
        let key = LpmKey::new(STEER_FIXED_BITS + bits, *place);
        match guard {
            Some(guard) => self.prefixed.update(&key, &guard),
            None => self.prefixed.delete(&key),
        }
    }

    pub fn set_guard(&self, number: u32, guard: &Guard) -> io::Result<()> {
        self.guards.update(&number, guard)
    }

    pub fn set_settings(&self, settings: &Settings) -> io::Result<()> {
        self.settings.update(&0u32, settings)
    }

    /// Puts a table of prefixes in place of the one before, in one step; without nodes there is none.
    pub fn swap_prefixes(&self, table: u32, nodes: &[Node]) -> io::Result<()> {
        if nodes.is_empty() {
            return self.tables.delete(&table);
        }
        let count = u32::try_from(nodes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let map = outer::prefixes(count)?;
        let mapped = Mapped::<Node>::map(map.as_fd(), count)?;
        for (index, node) in (0..).zip(nodes) {
            // SAFETY: within the mapping; no program knows the map yet.
            unsafe { mapped.at(index).write(*node) };
        }
        self.tables.update(&table, &(map.as_raw_fd() as u32))
    }

    /// What is known of the sources that share a place.
    pub fn bucket(&self, place: u32) -> io::Result<Option<Bucket>> {
        self.sources.get(&place)
    }

    /// How many connections a source has.
    pub fn crowd(&self, key: &CrowdKey) -> io::Result<u32> {
        Ok(self.crowd.get(key)?.unwrap_or(0))
    }

    /// It has so many.
    pub fn set_crowd(&self, key: &CrowdKey, count: u32) -> io::Result<()> {
        match count {
            0 => self.crowd.delete(key),
            count => self.crowd.update(key, &count),
        }
    }

    /// All sources with connections.
    pub fn crowds(&self) -> io::Result<Vec<(CrowdKey, u32)>> {
        let mut all = Vec::new();
        self.crowd
            .each::<CrowdKey, u32>(|key, count| all.push((*key, *count)))?;
        Ok(all)
    }

    /// What a guard has decided, by `Judged`.
    #[must_use]
    pub fn judged(&self, guard: u32) -> [u64; 8] {
        let mut sum = [0; 8];
        for tally in self.tally.get(&guard, 0).iter().flat_map(|all| all.iter()) {
            for (sum, one) in sum.iter_mut().zip(tally.judged) {
                *sum += one;
            }
        }
        sum
    }

    /// The samples of dropped packets that have come since: whoever asks first gets them.
    pub fn samples(&self, mut each: impl FnMut(Dropped)) {
        let mut ring = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(item) = ring.next() {
            if item.len() >= size_of::<Dropped>() {
                // SAFETY: as many bytes as a `Dropped` has, of which any are valid; read wherever they are aligned.
                each(unsafe { item.as_ptr().cast::<Dropped>().read_unaligned() });
            }
        }
    }
}
