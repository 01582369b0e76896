//! Programs and maps of tier `cut`: loaded, pinned, and attached to interfaces.
//!
//! Programs and maps outlive the process: maps and links are pinned under `/sys/fs/bpf/signalbox/v{ABI}/net-{cookie of
//! the network namespace}/`, and the next process uses them. Its programs replace the old ones in the links,
//! atomically; the maps, and with them the flows, stay.

mod carry_over;
pub mod entry_set;
pub mod free_entry;
pub mod hooks;
pub mod late;
pub mod moving;
pub mod reset;
pub(crate) mod segment;
pub mod shadow;
pub mod table;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use aya::programs::{Program, SchedClassifier};
use parking_lot::Mutex;
use signalbox_common::cut::flow::{CutConfig, CutFlow, FlowRef, Handshake, SYN_ACK_SEEN, state};
use signalbox_common::cut::moving::MovingAddress;
use signalbox_common::net::Tuple;
use signalbox_common::steer::SteerKey;
use signalbox_common::{Reason, parts};
use signalbox_core::routing::plan::Bindings;

use crate::error::KernelError;
use crate::interfaces::{self, Interface};
use crate::map::MapFd;
use crate::names::Names;
use crate::object::{CUT_THROUGH, ObjectLoader, ProgramLog, map_fd, program_log, refused_for_tests};
use crate::pins::layout::{self, LAYOUT};
use crate::pins::other_version::OtherVersion;
use crate::pins::{self, PinKind, Pins};
pub(crate) use carry_over::structures;
use hooks::CutHooks;
use table::{FlowTable, PendingPorts};

/// Most flows that one batch operation on the map removes.
const MAX_REMOVED_AT_ONCE: usize = 64;

/// Parts of programs for IPv4 alone.
static ALL_BUT_V6: u32 = parts::ALL & !parts::CUT_V6;

/// Kernel objects of tier `cut`.
pub struct Cut {
    pub pins: Pins,
    pub table: FlowTable,
    pub pending: PendingPorts,
    pub names: Names,
    tuples: MapFd,
    handshakes: MapFd,
    bindings: MapFd,
    config: MapFd,
    chain: MapFd,
    /// Content of `config`: the largest segment size, and whether `chain` has entries.
    mss: AtomicU32,
    has_moving: AtomicBool,
    /// Largest segment that all hosts take; 0 where it is not known.
    hosts_mss: AtomicU32,
    /// Held while entries of `CUT_CHAIN` are changed, and while programs learn whether there are any.
    chain_lock: Mutex<()>,
    counters: PerCpuArray<MapData, u64>,
    current_bindings: Mutex<Vec<(u32, SteerKey)>>,
    pub hooks: Mutex<CutHooks>,
    /// Pinned state of other versions that has not been carried over yet.
    other_versions: Mutex<Vec<OtherVersion>>,
    /// True if flows of an earlier process were found.
    pub adopted: bool,
    /// Reason why IPv6 is not cut, where the kernel took only the IPv4 half of the programs.
    pub without_v6: Option<String>,
    /// Ring of ended flows, until [`Self::take_ended_ring`] takes it.
    ended_ring: Mutex<Option<RingBuf<MapData>>>,
    /// Log of the programs.
    log: Mutex<Option<ProgramLog>>,
}

impl Cut {
    /// Loads the programs onto the pinned maps, or onto new ones for `own` flows and `shadows` of other balancers.
    /// Attaches nothing yet.
    pub fn load(loader: &mut ObjectLoader, own: u32, shadows: u32, take_over: bool) -> Result<Self, KernelError> {
        let failed = |what: &'static str| move |source: io::Error| KernelError::Io { what, source };
        let flows = own.saturating_add(shadows);
        let pins = Pins::open(PinKind::Cut, CUT_THROUGH, take_over).map_err(pins::unusable)?;
        let earlier = OtherVersion::lock_all(PinKind::Cut, "CUT_FLOWS", take_over).map_err(pins::unusable)?;
        let adopted = pins.path("CUT_FLOWS").exists();
        let mut attempt = |parts: &'static u32| {
            loader
                .0
                .default_map_pin_directory(pins.dir())
                .map_max_entries("CUT_FLOWS", flows)
                .map_max_entries("CUT_CT", flows.saturating_mul(2))
                .override_global(parts::SYMBOL, parts, true);
            let mut ebpf = loader.load(CUT_THROUGH)?;
            load_programs(&mut ebpf, *parts).map(|()| ebpf)
        };
        let loaded = match attempt(&parts::ALL) {
            // Programs for IPv4 alone are better than none.
            Err(whole) if whole.is_permanent() => match attempt(&ALL_BUT_V6) {
                Ok(ebpf) => Ok((ebpf, Some(signalbox_sys::error_chain(&whole)))),
                Err(_) => Err(whole),
            },
            other => other.map(|ebpf| (ebpf, None)),
        };
        // Maps are pinned before the verifier checks the programs, so those of a refused load would be left over.
        let (mut ebpf, without_v6) = loaded.inspect_err(|_| {
            if !adopted {
                pins.clear();
            }
        })?;
        let (table, pending) = match (ebpf.map("CUT_FLOWS"), ebpf.map("CUT_PENDING")) {
            (Some(Map::Array(flows)), Some(Map::Array(pending))) => {
                let count = flows.info().map_or(0, |info| info.max_entries());
                (
                    FlowTable::map(flows.fd().as_fd(), count, shadows)
                        .map_err(failed("mapping CUT_FLOWS into memory"))?,
                    PendingPorts::map(pending.fd().as_fd()).map_err(failed("mapping CUT_PENDING into memory"))?,
                )
            }
            _ => return Err(KernelError::NoMap("CUT_FLOWS")),
        };
        let names = Names::of(&ebpf)?;
        let (tuples, handshakes, bindings, config, chain) = (
            map_fd(&ebpf, "CUT_CT")?,
            map_fd(&ebpf, "CUT_HANDSHAKES")?,
            map_fd(&ebpf, "CUT_BINDINGS")?,
            map_fd(&ebpf, "CUT_CONFIG")?,
            map_fd(&ebpf, "CUT_CHAIN")?,
        );
        let ends = take(&mut ebpf, "CUT_FLOW_ENDED", RingBuf::try_from)?;
        let counters = take(&mut ebpf, "COUNTERS", PerCpuArray::try_from)?;
        let log = Mutex::new(program_log(&mut ebpf));
        if let Err(error) = layout::pin(&pins.path(LAYOUT), &structures()) {
            tracing::warn!(%error, "Another version of signalbox will not be able to carry cut flows over.");
        }
        for one in &earlier {
            let moving = carry_over::moving_addresses(one).unwrap_or_else(|error| {
                tracing::warn!(%error, "Drains of another version cannot be read, and end.");
                Vec::new()
            });
            let take = |(address, entry): &([u32; 4], MovingAddress)| chain.update(address, entry);
            moving.iter().try_for_each(take).map_err(failed("writing CUT_CHAIN"))?;
        }
        let cut = Self {
            hooks: Mutex::new(CutHooks::new(ebpf, pins.clone())),
            other_versions: Mutex::new(earlier),
            pins,
            table,
            pending,
            names,
            tuples,
            handshakes,
            bindings,
            config,
            chain,
            mss: AtomicU32::new(0),
            has_moving: AtomicBool::new(false),
            hosts_mss: AtomicU32::new(0),
            chain_lock: Mutex::default(),
            counters,
            current_bindings: Mutex::default(),
            adopted,
            without_v6,
            ended_ring: Mutex::new(Some(ends)),
            log,
        };
        // Addresses may be moving that an earlier process has begun to move.
        cut.refresh_has_moving().map_err(failed("reading CUT_CHAIN"))?;
        Ok(cut)
    }

    /// Returns how often the programs ended for each reason.
    #[must_use]
    pub fn exit_counts(&self) -> Vec<(Reason, u64)> {
        crate::counters::exit_counts(&self.counters)
    }

    /// Sets the destinations whose handshakes are recorded.
    pub fn set_bindings(&self, bindings: &Bindings) -> io::Result<()> {
        let mut bound = self.current_bindings.lock();
        for &(bits, key) in bindings.keys() {
            self.bindings.update(&Key::new(bits, key), &1u32)?;
        }
        for &(bits, key) in bound.iter().filter(|key| !bindings.contains_key(key)) {
            self.bindings.delete(&Key::new(bits, key))?;
        }
        *bound = bindings.keys().copied().collect();
        Ok(())
    }

    /// Whether no flow's packets arrive with a tuple. False where the kernel does not say.
    pub(crate) fn is_free(&self, tuple: &Tuple) -> bool {
        matches!(self.tuples.get::<Tuple, FlowRef>(tuple), Ok(None))
    }

    /// Records the handshake of a client with a program, whose socket is about to be made.
    pub fn record_handshake(&self, tuple: &Tuple, handshake: &Handshake) -> io::Result<()> {
        self.handshakes.update(tuple, handshake)
    }

    /// Counts bytes that leg A's socket has sent its client before leg B is connected: the host's first byte follows
    /// them in sequence. False where the handshake under this tuple is not known. The client's socket must be open: no
    /// other handshake can have the tuple then.
    pub fn add_greeting_bytes(&self, tuple: &Tuple, bytes: u32) -> io::Result<bool> {
        match self.handshakes.get::<Tuple, Handshake>(tuple)? {
            Some(handshake) if handshake.progress & SYN_ACK_SEEN != 0 => {
                let advanced = Handshake {
                    isn_vip: handshake.isn_vip.wrapping_add(bytes),
                    ..handshake
                };
                self.handshakes.update(tuple, &advanced).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Attaches to the interfaces that routes use, and detaches from those that are gone. Returns how many are
    /// attached. `look`: also restores programs that another process has removed; not for a process that is being
    /// replaced.
    pub fn follow_interfaces(&self, look: bool) -> usize {
        let mut hooks = self.hooks.lock();
        match interfaces::routed() {
            Ok(routed) => hooks.reconcile(&routed, look),
            // Programs that are attached stay.
            Err(error) => tracing::warn!(%error, "The kernel could not be asked for interfaces and routes."),
        }
        let of_interfaces = hooks.smallest_mtu().map(|mtu| mtu.saturating_sub(40));
        let of_hosts = Some(self.hosts_mss.load(Relaxed)).filter(|mss| *mss != 0);
        let mss = [of_interfaces, of_hosts].into_iter().flatten().min();
        self.mss.store(mss.unwrap_or(0), Relaxed);
        if let Err(error) = self.write_config() {
            tracing::warn!(%error, "The largest segment size could not be written for the programs of tier cut.");
        }
        hooks.count()
    }

    /// Returns the interfaces that have the programs.
    #[must_use]
    pub fn attached_interfaces(&self) -> Vec<Interface> {
        let hooks = self.hooks.lock();
        hooks.attached().cloned().collect()
    }

    /// Sets the largest segment that all hosts accept, as an MSS over IPv4; [`Self::follow_interfaces`] announces it to
    /// clients. `None`: nothing is known of hosts.
    pub fn set_hosts_mss(&self, mss: Option<u32>) {
        self.hosts_mss.store(mss.unwrap_or(0), Relaxed);
    }

    /// Returns the MSS that fits all interfaces of legs and all hosts, over IPv4; 0 where it is not known.
    #[must_use]
    pub fn mss(&self) -> u32 {
        self.mss.load(Relaxed)
    }

    fn write_config(&self) -> io::Result<()> {
        let config = CutConfig {
            mss: self.mss.load(Relaxed),
            has_moving_addresses: self.has_moving.load(Relaxed).into(),
        };
        self.config.update(&0u32, &config)
    }

    /// Carries over the flows of other versions whose processes have ended. Returns their indices in the table.
    pub fn carry_over(&self) -> Vec<u32> {
        let mut waiting = self.other_versions.lock();
        let all = std::mem::take(&mut *waiting);
        let mut carried = Vec::new();
        for mut one in all {
            if !one.lock() {
                waiting.push(one);
                continue;
            }
            let (version, dir) = (one.version().to_owned(), one.dir().display().to_string());
            let done = match carry_over::carry_over(self, &one) {
                Ok(more) => {
                    carried.extend(more);
                    Ok(())
                }
                Err(error) => {
                    // Without the carry-over it is unknown which source ports these flows have, and new flows would
                    // take the same: the old programs are retired.
                    tracing::error!(%error, version, dir, "Cut flows of another version cannot be read, and end.");
                    carry_over::retire_programs(&one)
                }
            };
            if let Err(error) = done.and_then(|()| one.remove()) {
                tracing::warn!(%error, "Pinned maps and programs of another version could not be removed.");
            }
        }
        carried
    }

    /// Returns whether a process of another version still holds flows.
    #[must_use]
    pub fn waits_for_other_version(&self) -> bool {
        let waiting = self.other_versions.lock();
        !waiting.is_empty()
    }

    /// Returns the flows of other versions that are not carried over yet.
    #[must_use]
    pub fn flows_not_carried_over(&self) -> Vec<CutFlow> {
        let waiting = self.other_versions.lock();
        let flows = waiting.iter().map(carry_over::flows);
        flows.filter_map(Result::ok).flatten().collect()
    }

    /// Takes the ring of ended flows; `None` the second time.
    pub fn take_ended_ring(&self) -> Option<EndedRing> {
        self.ended_ring.lock().take().map(EndedRing)
    }

    /// Writes the programs' messages to our log.
    pub fn flush_log(&self) {
        let mut log = self.log.lock();
        if let Some(log) = &mut *log {
            log.flush();
        }
    }

    /// Removes everything that would outlive the process.
    pub fn remove_all(&self) -> io::Result<()> {
        hooks::remove_filters();
        pins::remove_all(PinKind::Cut).map(drop)
    }

    /// Removes flows that have ended: their packets reach the kernel's TCP again, which answers them with a reset.
    pub fn remove(&self, indices: &[u32]) {
        for some in indices.chunks(MAX_REMOVED_AT_ONCE) {
            let mut tuples = Vec::with_capacity(2 * MAX_REMOVED_AT_ONCE);
            for &index in some {
                let flow = self.table.read(index);
                // From here on no program gives the entry to another flow; one may have done so already.
                self.table.set_state(index, state::DELETING);
                let is_ours = |way: &usize| self.table.begin_removal(index, *way);
                tuples.extend((0..2).filter(is_ours).map(|way| flow.tuple(way as u32)));
            }
            if let Err(error) = self.tuples.delete_all(&tuples) {
                tracing::warn!(%error, "Entries of ended flows could not be removed.");
            }
            for &index in some {
                self.table.set_state(index, state::FREE);
                self.table.announced.remove(index);
                self.table.changes.add(index);
            }
        }
    }

    /// Ends a flow: both ends are reset, and packets that still come are dropped until it is removed.
    pub fn reset_both(&self, index: u32, flow: &CutFlow) {
        self.table.set_state(index, state::CLOSING);
        if let Err(error) = reset::reset_both(flow) {
            reset::log_failure(&error);
        }
    }
}

/// Has the kernel check both programs at once: most of a start's time is the verifier's.
fn load_programs(ebpf: &mut Ebpf, parts: u32) -> Result<(), KernelError> {
    const NAMES: [&str; 2] = ["cut_in", "cut_out"];
    NAMES.into_iter().try_for_each(|name| refused_for_tests(name, parts))?;
    let mut programs: HashMap<&str, &mut Program> = ebpf.programs_mut().collect();
    std::thread::scope(|scope| {
        let mut loads = Vec::with_capacity(NAMES.len());
        for name in NAMES {
            let program = programs.remove(name).ok_or(KernelError::NoProgram(name))?;
            let load = move || {
                let classifier: &mut SchedClassifier = program.try_into()?;
                classifier.load()
            };
            let thread = std::thread::Builder::new().spawn_scoped(scope, load);
            loads.push(thread.map_err(|source| KernelError::Io {
                what: "starting a thread that loads a program",
                source,
            })?);
        }
        for (name, load) in NAMES.into_iter().zip(loads) {
            let verdict = load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            verdict.map_err(|e| KernelError::of_program(name, e))?;
        }
        Ok(())
    })
}

/// Ring of flows that have ended, filled by the programs.
pub struct EndedRing(RingBuf<MapData>);

impl EndedRing {
    /// Hands out the flows that are in the ring, by index, with the time that the host of a new one has taken to accept it.
    pub fn drain(&mut self, mut each: impl FnMut(u32, Option<Duration>)) {
        while let Some(item) = self.0.next() {
            let (words, _) = item.as_chunks::<4>();
            if let [index, accepted_after] = words {
                let took = accepted_after_of(u32::from_ne_bytes(*accepted_after));
                each(u32::from_ne_bytes(*index), took);
            }
        }
    }
}

/// Time that a host took to accept a flow, from units of 1024 ns; `None` for 0: the time is not known.
pub(crate) fn accepted_after_of(units: u32) -> Option<Duration> {
    (units != 0).then(|| Duration::from_nanos(u64::from(units) << 10))
}

fn take<T>(
    ebpf: &mut Ebpf,
    name: &'static str,
    make: impl FnOnce(Map) -> Result<T, aya::maps::MapError>,
) -> Result<T, KernelError> {
    let map = ebpf.take_map(name).ok_or(KernelError::NoMap(name))?;
    make(map).map_err(|e| KernelError::Map {
        name,
        source: Box::new(e),
    })
}
