//! Program and maps of the kernel peek: loaded, and attached after `cut_in`. Only the keys of its cookies outlive the
//! process; where its links are pinned, everything does.
//!
//! Minimum kernel: 5.17 (`bpf_loop`). From 6.9 on the kernel makes the sockets of connections that are passed up
//! (`bpf_sk_assign_tcp_reqsk`, net/core/filter.c).

mod asked;
mod chosen;
mod cookie_keys;
pub(crate) mod filters;
mod hooks;
mod kernel_function;
mod orphan;
mod passed_up;

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Map, MapData, PerCpuArray, PerCpuValues, RingBuf};
use aya::programs::{SchedClassifier, SocketFilter};
use parking_lot::Mutex;
use signalbox_common::peek::abi::{
    KFUNC_ASSIGN_REQUEST, MAX_PEEK_CHOSEN, MAX_PEEK_COUNTS, MAX_PEEK_HOSTS, PEEK_ASKED_PER_CPU, PEEK_PAYLOADS_PER_CPU,
    PeekAbout, PeekBinding, PeekClient, PeekCluster, PeekConfig, PeekCursor, PeekHost, PeekLimits, PeekMaglev,
    PeekName, PeekRoute, PeekSourceKey, PeekWildcard,
};
use signalbox_common::sketch::{CELLS, first_cell::ALL_CELLS};
use signalbox_common::steer::SteerKey;
use signalbox_common::{Reason, parts};

use crate::cut::{Cut, accepted_after_of};
use crate::error::KernelError;
use crate::interfaces::Interface;
use crate::map::{self, MapFd, MmapArray, RawMap};
use crate::object::{KERNEL_PEEK, ObjectLoader, map_fd, program, refused_for_tests};
pub use asked::{AskedFlows, Redispatch, WaitingFlow};
pub use chosen::{ChosenHost, ChosenHosts};
pub use cookie_keys::{CookieKeys, OtherKey};
use hooks::PeekHooks;
pub use orphan::{detach_orphans, has_orphans};
pub use passed_up::{PassedUpConnection, PassedUpRing};

const PROGRAM: &str = "peek_in";
const HOLD: &str = "peek_hold";

/// Name of the pin of this machine's key.
const KEY_PIN: &str = "PEEK_KEY";

/// Keys of the cookies, pinned: a successor accepts its predecessor's cookies.
const COOKIES: &str = "PEEK_COOKIES";

/// Note of a program about a flow that it has begun.
pub struct FlowNote {
    /// Name that the client has asked for.
    pub name: PeekName,
    /// Time that the host took to accept the flow; `None`: it has not.
    pub accepted_after: Option<Duration>,
    /// Bits of [`signalbox_common::peek::proxy::part`]: the PROXY header that the host gets.
    pub parts: u32,
}

/// Kernel objects of the kernel peek.
pub struct Peek {
    bindings: MapFd,
    routes: MapFd,
    wildcards: MapFd,
    sources: MapFd,
    clients: MapFd,
    clusters: MapFd,
    maglev: MapFd,
    config: MapFd,
    limits: MapFd,
    /// Counts of connections, and sketches of sources, that programs and userspace share.
    counts: &'static [AtomicU64],
    sketches: &'static [AtomicU64],
    hosts: MmapArray<PeekHost>,
    about: MmapArray<PeekAbout>,
    /// Connections that wait for their hosts, and the flows that were asked for lately.
    pending: MapFd,
    asked: &'static [AtomicU64],
    chosen: Arc<ChosenHosts>,
    cookie_keys: Arc<CookieKeys>,
    /// First flow that `about` has an element of.
    first_flow: u32,
    counters: PerCpuArray<MapData, u64>,
    /// `None` once its reader has taken it.
    passed_up: Mutex<Option<PassedUpRing>>,
    /// Whether the kernel makes sockets from cookies.
    makes_sockets: bool,
    /// The object whose program the kernel has not checked yet.
    unloaded: Mutex<Option<Ebpf>>,
    hooks: Mutex<PeekHooks>,
    key: [u64; 2],
    cpus: u32,
}

/// Object of the kernel peek, for the running kernel.
pub struct LinkedObject {
    /// The ELF file.
    pub bytes: Vec<u8>,
    /// Whether the kernel makes sockets from cookies (6.9). Otherwise the program does not call that function.
    makes_sockets: bool,
}

impl LinkedObject {
    /// Completes the calls of a function of the kernel, or leaves them out.
    #[must_use]
    pub fn new() -> Self {
        let mut bytes = KERNEL_PEEK.to_vec();
        let makes_sockets = kernel_function::link(&mut bytes, "bpf_sk_assign_tcp_reqsk", KFUNC_ASSIGN_REQUEST);
        Self { bytes, makes_sockets }
    }
}

impl Default for LinkedObject {
    fn default() -> Self {
        Self::new()
    }
}

impl Peek {
    /// Makes the maps, beside those of tier `cut`. [`Self::load_program`] comes next, and
    /// [`FlowTable::share_with_programs`](crate::cut::table::FlowTable::share_with_programs) before workers claim flows.
    pub fn make(loader: &mut ObjectLoader, cut: &Cut) -> Result<Self, KernelError> {
        let failed = |what: &'static str| move |source: io::Error| KernelError::Io { what, source };
        let linked = LinkedObject::new();
        let cpus = cpus_with_a_share();
        let flows = cut.table.programs_share().max(1);
        loader
            .0
            .map_max_entries("PEEK_PAYLOADS", PEEK_PAYLOADS_PER_CPU * cpus)
            .map_max_entries("PEEK_ABOUT", flows)
            .map_max_entries("PEEK_ASKED", PEEK_ASKED_PER_CPU * cpus)
            .default_map_pin_directory(cut.pins.dir())
            .map_pin_path("CUT_HANDSHAKES", cut.pins.path("CUT_HANDSHAKES"))
            .map_pin_path(COOKIES, cut.pins.path(COOKIES))
            .override_global(parts::SYMBOL, &parts::ALL, false);
        let mut ebpf = loader.load(&linked.bytes)?;
        let hosts = mapped(&ebpf, "PEEK_HOSTS", MAX_PEEK_HOSTS)?;
        let about = mapped(&ebpf, "PEEK_ABOUT", flows)?;
        scatter_cursors(&mut ebpf).map_err(failed("writing PEEK_CURSOR"))?;
        let counters = ebpf.take_map("COUNTERS").ok_or(KernelError::NoMap("COUNTERS"))?;
        let passed_up = passed_up_ring(&mut ebpf)?;
        let key = shared_key(cut).map_err(failed("sharing the key of cookies"))?;
        Ok(Self {
            bindings: map_fd(&ebpf, "PEEK_BINDINGS")?,
            routes: map_fd(&ebpf, "PEEK_ROUTES")?,
            wildcards: map_fd(&ebpf, "PEEK_WILDCARDS")?,
            sources: map_fd(&ebpf, "PEEK_SOURCES")?,
            clients: map_fd(&ebpf, "PEEK_CLIENTS")?,
            clusters: map_fd(&ebpf, "PEEK_CLUSTERS")?,
            maglev: map_fd(&ebpf, "PEEK_MAGLEV")?,
            config: map_fd(&ebpf, "PEEK_CONFIG")?,
            limits: map_fd(&ebpf, "PEEK_LIMITS")?,
            counts: mapped::<u64>(&ebpf, "PEEK_COUNTS", MAX_PEEK_COUNTS)?.leak(),
            sketches: mapped::<u64>(&ebpf, "PEEK_SKETCHES", ALL_CELLS)?.leak(),
            hosts,
            about,
            pending: map_fd(&ebpf, "PEEK_PENDING")?,
            asked: mapped::<u64>(&ebpf, "PEEK_ASKED", PEEK_ASKED_PER_CPU * cpus)?.leak(),
            chosen: Arc::new(ChosenHosts::new(mapped(&ebpf, "PEEK_CHOSEN", MAX_PEEK_CHOSEN)?)),
            cookie_keys: Arc::new(CookieKeys::new(mapped(&ebpf, COOKIES, 1)?, key)),
            first_flow: cut.table.own_len() - cut.table.programs_share(),
            counters: PerCpuArray::try_from(counters).map_err(|e| KernelError::Map {
                name: "COUNTERS",
                source: Box::new(e),
            })?,
            passed_up: Mutex::new(Some(passed_up)),
            makes_sockets: linked.makes_sockets,
            unloaded: Mutex::new(Some(ebpf)),
            hooks: Mutex::new(PeekHooks::new(cut.pins.clone())),
            key,
            cpus,
        })
    }

    /// Has the kernel check the program, which takes it 0.3 s or more. Attaches nothing yet.
    pub fn load_program(&self) -> Result<(), KernelError> {
        let unloaded = self.unloaded.lock().take();
        let Some(mut ebpf) = unloaded else { return Ok(()) };
        refused_for_tests(PROGRAM, 0)?;
        program::<SchedClassifier>(&mut ebpf, PROGRAM)?
            .load()
            .map_err(|e| KernelError::of_program(PROGRAM, e))?;
        self.hooks.lock().ebpf = Some(ebpf);
        Ok(())
    }

    /// Returns the number of CPUs that divide flows, ports and payloads among them: the first ones. Another, which has come
    /// later, passes connections up.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.cpus
    }

    /// Returns whether the kernel makes sockets from cookies; otherwise userspace makes them (6.9).
    #[must_use]
    pub const fn makes_sockets(&self) -> bool {
        self.makes_sockets
    }

    /// Takes the ring of connections whose sockets userspace makes; `None` if it is taken.
    #[must_use]
    pub fn take_passed_up(&self) -> Option<PassedUpRing> {
        self.passed_up.lock().take()
    }

    /// Returns the hosts that the program chooses for connections that it passes up.
    #[must_use]
    pub fn chosen_hosts(&self) -> Arc<ChosenHosts> {
        Arc::clone(&self.chosen)
    }

    /// Returns the keys of the cookies.
    #[must_use]
    pub fn cookie_keys(&self) -> Arc<CookieKeys> {
        Arc::clone(&self.cookie_keys)
    }

    /// Returns how often the program ended for each reason.
    #[must_use]
    pub fn exit_counts(&self) -> Vec<(Reason, u64)> {
        crate::counters::exit_counts(&self.counters)
    }

    /// Returns how often the program ended for this reason.
    #[must_use]
    pub fn exit_count(&self, reason: Reason) -> u64 {
        crate::counters::sum(&self.counters, reason as u32)
    }

    /// Writes the settings; the key is filled in.
    pub fn set_config(&self, config: PeekConfig) -> io::Result<()> {
        self.config.update(
            &0u32,
            &PeekConfig {
                key: self.key,
                ..config
            },
        )
    }

    /// Routes the connections of a destination in the kernel.
    pub fn bind(&self, (bits, key): (u32, SteerKey), binding: &PeekBinding) -> io::Result<()> {
        self.bindings.update(&Key::new(bits, key), binding)
    }

    /// Leaves the connections of a destination to its sockets.
    pub fn unbind(&self, (bits, key): (u32, SteerKey)) -> io::Result<()> {
        self.bindings.delete(&Key::new(bits, key))
    }

    /// Writes a route.
    pub fn set_route(&self, name: &PeekName, route: &PeekRoute) -> io::Result<()> {
        self.routes.update(name, route)
    }

    /// Leaves the connections of a name to userspace.
    pub fn remove_route(&self, name: &PeekName) -> io::Result<()> {
        self.routes.delete(name)
    }

    /// Writes the routes of a wildcard.
    pub fn set_wildcard(&self, name: &PeekName, wildcard: &PeekWildcard) -> io::Result<()> {
        let (bits, suffix) = name.suffix();
        self.wildcards.update(&Key::new(bits, suffix), wildcard)
    }

    /// Leaves the names of a wildcard to a shorter one, or to userspace.
    pub fn remove_wildcard(&self, name: &PeekName) -> io::Result<()> {
        let (bits, suffix) = name.suffix();
        self.wildcards.delete(&Key::new(bits, suffix))
    }

    /// Sets the address from which connections to a host are made, for clients of an address that moves; `None`: its
    /// own.
    pub fn set_source(&self, key: &PeekSourceKey, source: Option<&[u32; 4]>) -> io::Result<()> {
        match source {
            Some(source) => self.sources.update(key, source),
            None => self.sources.delete(key),
        }
    }

    /// Sets whether the program routes the connections of a list's clients; `None`: a shorter prefix decides.
    pub fn set_client(&self, (bits, client): (u32, PeekClient), is_routed: Option<&u32>) -> io::Result<()> {
        match is_routed {
            Some(is_routed) => self.clients.update(&Key::new(bits, client), is_routed),
            None => self.clients.delete(&Key::new(bits, client)),
        }
    }

    /// Returns the program's note about a flow that it began at a tick; `None` if the note is of another flow.
    #[must_use]
    pub fn about(&self, flow: u32, started: u32) -> Option<FlowNote> {
        // SAFETY: aligned, within the mapping. The program writes the element once more when it takes the entry for another
        // flow, which begins at another tick.
        let about = unsafe { self.about_of(flow)?.read_volatile() };
        (about.started == started).then(|| FlowNote {
            name: about.name,
            accepted_after: accepted_after_of(about.accepted_after),
            parts: about.parts,
        })
    }

    fn about_of(&self, flow: u32) -> Option<*mut PeekAbout> {
        let index = flow.checked_sub(self.first_flow)?;
        (index < self.about.count()).then(|| self.about.at(index))
    }

    /// Takes over the counts that a flow of the program is in: bits of `signalbox_common::peek::abi::counted`, and its host's
    /// word in the counts. Nothing where the flow is another program's, or where its counts have been taken.
    #[must_use]
    pub fn take_counted(&self, flow: u32, started: u32) -> (u32, u32) {
        let Some(about) = self.about_of(flow) else {
            return (0, 0);
        };
        // SAFETY: aligned, within the mapping; each number is read or written whole, and the program changes them while it
        // makes a flow of the entry, which is another flow.
        unsafe {
            if (&raw const (*about).started).read_volatile() != started {
                return (0, 0);
            }
            let count = (&raw const (*about).count).read_volatile();
            (AtomicU32::from_ptr(&raw mut (*about).counted).swap(0, Relaxed), count)
        }
    }

    /// Returns the counts that programs and userspace share: elements of `PEEK_COUNTS`.
    #[must_use]
    pub const fn counts(&self) -> &'static [AtomicU64] {
        self.counts
    }

    /// Returns a sketch that programs and userspace share: a constant of `signalbox_common::sketch::first_cell`.
    #[must_use]
    pub fn sketch(&self, first: u32) -> &'static [AtomicU64] {
        let cells = first as usize..(first + CELLS) as usize;
        self.sketches.get(cells).unwrap_or_default()
    }

    /// Writes the limits of a route, or of a listener; `None`: it has none.
    pub fn set_limits(&self, key: u32, limits: Option<&PeekLimits>) -> io::Result<()> {
        match limits {
            Some(limits) => self.limits.update(&key, limits),
            None => self.limits.delete(&key),
        }
    }

    /// Writes a cluster.
    pub fn set_cluster(&self, index: u32, cluster: &PeekCluster) -> io::Result<()> {
        self.clusters.update(&index, cluster)
    }

    /// Writes the Maglev table of a cluster.
    pub fn set_maglev(&self, index: u32, table: &PeekMaglev) -> io::Result<()> {
        self.maglev.update(&index, table)
    }

    /// Writes a host's addresses and weight; its counts stay. Only before a cluster has the host.
    pub fn set_host(&self, index: u32, host: &PeekHost) {
        let entry = self.hosts.at(index);
        // SAFETY: within the mapping; programs read the fields one by one, and no cluster names the host yet, or these
        // fields do not change.
        unsafe {
            (&raw mut (*entry).address).write_volatile(host.address);
            (&raw mut (*entry).local).write_volatile(host.local);
            (&raw mut (*entry).port).write_volatile(host.port);
            (&raw mut (*entry).number).write_volatile(host.number);
            (&raw mut (*entry).weight).write_volatile(host.weight);
            (&raw mut (*entry).ifindex).write_volatile(host.ifindex);
            (&raw mut (*entry).is_moving).write_volatile(host.is_moving);
            (&raw mut (*entry).count).write_volatile(host.count);
        }
    }

    /// Forgets what a host's element has counted, for another host.
    pub fn clear_host(&self, index: u32) {
        // SAFETY: within the mapping; no cluster names the host.
        unsafe { self.hosts.at(index).write_volatile(PeekHost::default()) };
    }

    /// Attaches, as soon as it may, to the interfaces that have the programs of tier `cut`, which carry the flows that
    /// this one begins. `outlives`: the program stays there when the process has died.
    pub fn follow_interfaces(&self, cut: &Cut, outlives: bool, may_attach: impl Fn(&Interface) -> bool) {
        let mut hooks = self.hooks.lock();
        let mut wanted = cut.attached_interfaces();
        wanted.retain(|interface| hooks.is_attached(interface.index) || may_attach(interface));
        hooks.reconcile(&wanted, outlives);
    }

    /// Has the program end with the process, which ends.
    pub fn end(&self, has_successor: bool) {
        self.hooks.lock().end(has_successor);
    }

    /// Detaches what would stay attached when the process has ended.
    pub fn leave(&self) {
        self.hooks.lock().leave();
    }

    /// Detaches programs that an earlier process has left: from here on this one may outlive its own. Returns how many.
    /// `predecessor`: pid of one that drains.
    pub fn replace_orphans(&self, outlives: bool, predecessor: Option<u32>) -> io::Result<usize> {
        self.hooks.lock().replace_orphans(outlives, predecessor)
    }
}

/// Loads the filter of sockets that are being made, and takes the ring of their connections.
fn passed_up_ring(ebpf: &mut Ebpf) -> Result<PassedUpRing, KernelError> {
    const RING: &str = "PEEK_PASSED_UP";
    let ring = ebpf.take_map(RING).ok_or(KernelError::NoMap(RING))?;
    let filter = program::<SocketFilter>(ebpf, HOLD)?;
    filter.load().map_err(|e| KernelError::of_program(HOLD, e))?;
    let hold = filter.fd().map_err(|e| KernelError::of_program(HOLD, e))?;
    let hold = hold.as_fd().try_clone_to_owned();
    Ok(PassedUpRing {
        ring: RingBuf::try_from(ring).map_err(|e| KernelError::Map {
            name: RING,
            source: Box::new(e),
        })?,
        hold: Arc::new(hold.map_err(|source| KernelError::Io {
            what: "keeping the filter of new sockets",
            source,
        })?),
    })
}

/// Maps an array of the program into memory.
fn mapped<T>(ebpf: &Ebpf, name: &'static str, entries: u32) -> Result<MmapArray<T>, KernelError> {
    let Some(Map::Array(map)) = ebpf.map(name) else {
        return Err(KernelError::NoMap(name));
    };
    MmapArray::map(map.fd().as_fd(), entries).map_err(|source| KernelError::Io {
        what: "mapping an array of the kernel peek into memory",
        source,
    })
}

/// Number of the first CPUs, up to the last one that is there: a machine may have room for many more.
fn cpus_with_a_share() -> u32 {
    let online = aya::util::online_cpus().ok();
    online
        .and_then(|cpus| cpus.into_iter().max())
        .map_or(1, |last| last + 1)
}

/// Has each CPU begin anywhere in its share of flows and ports: an earlier process has begun at some place, too, and
/// its flows still use the entries that follow.
fn scatter_cursors(ebpf: &mut Ebpf) -> io::Result<()> {
    let map = ebpf.map_mut("PEEK_CURSOR").ok_or(io::ErrorKind::NotFound)?;
    let mut cursors = PerCpuArray::<_, PeekCursor>::try_from(map).map_err(io::Error::other)?;
    let cpus = aya::util::nr_cpus().map_err(|(_, error)| error)?;
    let mut starts = Vec::with_capacity(cpus);
    for _ in 0..cpus {
        let mut random = [0u8; 8];
        signalbox_sys::random_bytes(&mut random)?;
        let [a, b, c, d, rest @ ..] = random;
        starts.push(PeekCursor {
            flow: u32::from_ne_bytes([a, b, c, d]),
            port: u32::from_ne_bytes(rest),
            ..PeekCursor::default()
        });
    }
    cursors
        .set(0, PerCpuValues::try_from(starts)?, 0)
        .map_err(io::Error::other)
}

/// Key of this machine, the same in all processes that use these pins.
fn shared_key(cut: &Cut) -> io::Result<[u64; 2]> {
    let path = cut.pins.path(KEY_PIN);
    if let Ok(pinned) = RawMap::open(&path) {
        let bytes = pinned.get(&0u32.to_ne_bytes())?;
        let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk()).copied();
        if let (Some(first), Some(second)) = (word(0), word(8)) {
            return Ok([u64::from_ne_bytes(first), u64::from_ne_bytes(second)]);
        }
    }
    let mut key = [0u8; 16];
    signalbox_sys::random_bytes(&mut key)?;
    let made = map::create_array("peek_key", key.len() as u32, 1, 0)?;
    MapFd::new(made.as_fd())?.update_bytes(&0u32, &key)?;
    map::pin(&made, &path)?;
    let [a, b, c, d, e, f, g, h, rest @ ..] = key;
    Ok([u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes(rest)])
}
