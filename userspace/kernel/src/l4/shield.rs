//! Maps of the shield. The decisions are in `signalbox_common::shield`.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};

use aya::Ebpf;
use aya::maps::lpm_trie::Key as LpmKey;
use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues, RingBuf};
use parking_lot::Mutex;
use signalbox_common::net::Target;
use signalbox_common::shield::abi::{GRACE_PERIOD_TABLE, GuardStats, NO_TABLE, SAMPLE_QUOTA};
use signalbox_common::shield::prefixes::Node;
use signalbox_common::shield::{Bucket, ConnCountKey, DroppedPacket, Guard, Settings};
use signalbox_common::steer::{STEER_FIXED_BITS, SteerKey};

use crate::error::KernelError;
use crate::map::{MapFd, MmapArray};
use crate::map_in_map;
use crate::object::map_fd;

/// Maps of the shield, by their use.
pub struct Shield {
    ports: MapFd,
    wildcard_ports: MapFd,
    targets: MapFd,
    prefixed: MapFd,
    guards: MapFd,
    settings: MapFd,
    tables: MapFd,
    sources: MapFd,
    /// Number of buckets for sources.
    buckets: u32,
    conn_count: MapFd,
    stats: PerCpuArray<MapData, GuardStats>,
    samples: Mutex<Samples>,
    /// Trie of the prefixes that all guards share: two halves, one of which is active.
    shared_prefixes: Mutex<MmapArray<Node>>,
}

/// Samples of dropped packets, and the quota of further ones.
struct Samples {
    ring: RingBuf<MapData>,
    quota: PerCpuArray<MapData, u64>,
}

impl Shield {
    /// Takes the shield's maps from a loaded object.
    pub fn of(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let unusable = |name: &'static str| {
            move |e| KernelError::Map {
                name,
                source: Box::new(e),
            }
        };
        let fd = |name| map_fd(ebpf, name);
        let [ports, anywhere, targets, prefixed, guards] = [
            fd("SHIELD_PORT_BITMAP")?,
            fd("SHIELD_WILDCARD_PORTS")?,
            fd("SHIELD_TARGETS")?,
            fd("SHIELD_PREFIX_TARGETS")?,
            fd("SHIELD_GUARDS")?,
        ];
        let [settings, tables, sources, conn_count] = [
            fd("SHIELD_SETTINGS")?,
            fd("SHIELD_GUARD_PREFIXES")?,
            fd("SHIELD_SOURCES")?,
            fd("SHIELD_CONN_COUNT")?,
        ];
        let mut take = |name: &'static str| ebpf.take_map(name).ok_or(KernelError::NoMap(name));
        let stats = PerCpuArray::try_from(take("SHIELD_STATS")?).map_err(unusable("SHIELD_STATS"))?;
        let ring = RingBuf::try_from(take("SHIELD_SAMPLES")?).map_err(unusable("SHIELD_SAMPLES"))?;
        let quota = PerCpuArray::try_from(take("SHIELD_SAMPLE_QUOTA")?).map_err(unusable("SHIELD_SAMPLE_QUOTA"))?;
        // Not taken, because its descriptor must stay open: a program that an interface needs later is loaded onto it.
        let Some(Map::Array(nodes)) = ebpf.map("SHIELD_SHARED_PREFIXES") else {
            return Err(KernelError::NoMap("SHIELD_SHARED_PREFIXES"));
        };
        let io = |what: &'static str| move |source| KernelError::Io { what, source };
        let info = nodes.info().map_err(unusable("SHIELD_SHARED_PREFIXES"))?;
        let nodes =
            MmapArray::map(nodes.fd().as_fd(), info.max_entries()).map_err(io("mapping SHIELD_SHARED_PREFIXES"))?;
        let places = match ebpf.map("SHIELD_SOURCES") {
            Some(Map::Array(data)) => data.info().map_err(unusable("SHIELD_SOURCES"))?.max_entries(),
            _ => return Err(KernelError::NoMap("SHIELD_SOURCES")),
        };
        Ok(Self {
            ports,
            wildcard_ports: anywhere,
            targets,
            prefixed,
            guards,
            settings,
            tables,
            sources,
            buckets: places,
            conn_count,
            stats,
            samples: Mutex::new(Samples { ring, quota }),
            shared_prefixes: Mutex::new(nodes),
        })
    }

    /// Sets which of 64 ports are guarded: see `PortBit`.
    pub fn set_ports(&self, word: u32, bits: u64) -> io::Result<()> {
        self.ports.update(&word, &bits)
    }

    /// Sets which of 64 ports are guarded by prefix.
    pub fn set_wildcard_ports(&self, word: u32, bits: u64) -> io::Result<()> {
        self.wildcard_ports.update(&word, &bits)
    }

    /// Returns the 64 bits that [`Self::set_ports`] has set.
    pub fn ports(&self, word: u32) -> io::Result<u64> {
        Ok(self.ports.get(&word)?.unwrap_or_default())
    }

    /// Sets or removes the guard of an address and port.
    pub fn set_target(&self, target: &Target, guard: Option<u32>) -> io::Result<()> {
        match guard {
            Some(guard) => self.targets.update(target, &guard),
            None => self.targets.delete(target),
        }
    }

    /// Sets or removes the guard of a prefix and port; `bits` is the length of the prefix.
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

    /// Returns the number of buckets for sources.
    #[must_use]
    pub const fn buckets(&self) -> u32 {
        self.buckets
    }

    /// Returns the most nodes that the trie of shared prefixes may have.
    #[must_use]
    pub fn max_shared_nodes(&self) -> u32 {
        self.shared_prefixes.lock().count() / 2
    }

    /// Writes the trie of shared prefixes into the inactive half; `in_force` is where the active one begins. Returns
    /// where the new one begins, for the settings. Fails if there is no room.
    pub fn write_shared_prefixes(&self, nodes: &[Node], in_force: u32) -> io::Result<u32> {
        if nodes.is_empty() {
            return Ok(NO_TABLE);
        }
        let common = self.shared_prefixes.lock();
        let room = common.count() / 2;
        if nodes.len() > room as usize {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Programs may still read the inactive half, from before the last change. A change of a map of maps waits for
        // them (`maybe_wait_bpf_programs`, kernel/bpf/syscall.c).
        let empty = map_in_map::create_prefix_table(1)?;
        self.tables.update(&GRACE_PERIOD_TABLE, &(empty.as_raw_fd() as u32))?;
        let first = if in_force == 0 { room } else { 0 };
        write(&common, first, nodes);
        Ok(first)
    }

    /// Replaces a guard's own prefixes in one step; without nodes they are removed.
    pub fn swap_own(&self, guard: u32, nodes: &[Node]) -> io::Result<()> {
        if nodes.is_empty() {
            return self.tables.delete(&guard);
        }
        let count = u32::try_from(nodes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let map = map_in_map::create_prefix_table(count)?;
        write(&MmapArray::<Node>::map(map.as_fd(), count)?, 0, nodes);
        self.tables.update(&guard, &(map.as_raw_fd() as u32))
    }

    /// Returns the bucket of a number, which several sources may share.
    pub fn bucket(&self, place: u32) -> io::Result<Option<Bucket>> {
        self.sources.get(&place)
    }

    /// Returns the number of connections of a source at a guard.
    pub fn conn_count(&self, key: &ConnCountKey) -> io::Result<u32> {
        Ok(self.conn_count.get(key)?.unwrap_or(0))
    }

    /// Sets the number of connections of a source at a guard.
    pub fn set_conn_count(&self, key: &ConnCountKey, count: u32) -> io::Result<()> {
        match count {
            0 => self.conn_count.delete(key),
            count => self.conn_count.update(key, &count),
        }
    }

    /// Returns all sources that have connections, with their numbers.
    pub fn conn_counts(&self) -> io::Result<Vec<(ConnCountKey, u32)>> {
        let mut all = Vec::new();
        self.conn_count
            .for_each::<ConnCountKey, u32>(|key, count| all.push((*key, *count)))?;
        Ok(all)
    }

    /// Returns how often a guard has made each `Decision`.
    #[must_use]
    pub fn decisions(&self, guard: u32) -> [u64; 8] {
        let mut sum = [0; 8];
        for stats in self.stats.get(&guard, 0).iter().flat_map(|all| all.iter()) {
            for (sum, one) in sum.iter_mut().zip(stats.decisions) {
                *sum += one;
            }
        }
        sum
    }

    /// Hands out the samples of dropped packets since the last call, from all programs, and permits as many again.
    pub fn for_each_sample(&self, mut each: impl FnMut(DroppedPacket)) -> io::Result<()> {
        let mut samples = self.samples.lock();
        while let Some(item) = samples.ring.next() {
            if item.len() >= size_of::<DroppedPacket>() {
                // SAFETY: as many bytes as a `DropReason` has, of which any are valid; read wherever they are aligned.
                each(unsafe { item.as_ptr().cast::<DroppedPacket>().read_unaligned() });
            }
        }
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
        for kind in 0..samples.quota.len() {
            let full = PerCpuValues::try_from(vec![SAMPLE_QUOTA; cpus])?;
            samples.quota.set(kind, full, 0).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Writes nodes to a part of the map that no program reads yet.
fn write(to: &MmapArray<Node>, first: u32, nodes: &[Node]) {
    for (index, node) in (first..).zip(nodes) {
        // SAFETY: within the mapping, as `at` asserts; no other thread writes it.
        unsafe { to.at(index).write(*node) };
    }
}
