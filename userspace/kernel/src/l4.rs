//! Programs and maps of layer-4 services: loaded, pinned, and attached to interfaces.
//!
//! Programs and maps outlive the process, as those of tier `cut` do: packets of services are forwarded while signalbox
//! restarts or has been killed, and the next process keeps the same flows.

mod carry_over;
pub mod decap;
pub mod hooks;
pub mod shield;
pub mod test_run;

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya::maps::{Array, Map, MapData, PerCpuArray};
use aya::{Ebpf, EbpfLoader};
use parking_lot::Mutex;
use signalbox_common::l4::abi::{DsrQuota, MAX_HOSTS};
use signalbox_common::l4::{Host, L4Config, L4Flow, Service, ServiceStats};
use signalbox_common::net::{Key, Target};
use signalbox_common::{Reason, parts};
use signalbox_core::model::services::Hook;

use crate::error::KernelError;
use crate::map::{self, MapFd};
use crate::map_in_map::{self, TABLE_BYTES};
use crate::names::Names;
use crate::object::{LAYER4, ProgramLog, map_fd, program_log};
use crate::pins::layout::{self, LAYOUT};
use crate::pins::other_version::OtherVersion;
use crate::pins::temporary::TemporaryPins;
use crate::pins::{self, PinKind, Pins};
pub(crate) use carry_over::structures;
use hooks::L4Hooks;
use shield::Shield;

/// Sizes of maps.
#[derive(Clone, Copy, Debug)]
pub struct MapSizes {
    /// Connections of services.
    pub flows: u32,
    /// Sources whose rates the shield keeps.
    pub sources: u32,
    /// Nodes of the trie of the prefixes that all guards share.
    pub nodes: u32,
}

/// Kernel objects of layer-4 services.
pub struct L4Kernel {
    pub pins: Pins,
    /// Numbers of services by name.
    pub names: Names,
    /// Parts that the kernel has refused, of [`parts::SHIELD`] and [`parts::SERVICES`].
    pub missing: u32,
    pub established: MapFd,
    pub half_open: MapFd,
    services: MapFd,
    tables: MapFd,
    hosts: MapFd,
    ports: MapFd,
    sources: MapFd,
    config: MapFd,
    dsr_quota: MapFd,
    /// Limit of established flows with direct return.
    max_dsr_flows: u64,
    macs: MapFd,
    found_hosts: Vec<Host>,
    counters: PerCpuArray<MapData, u64>,
    service_stats: PerCpuArray<MapData, ServiceStats>,
    port_bitmap: MapFd,
    pub shield: Shield,
    hooks: Mutex<L4Hooks>,
    /// Log of the programs.
    log: Mutex<Option<ProgramLog>>,
    /// Pinned state of other versions that has not been carried over yet.
    other_versions: Mutex<carry_over::OtherVersions>,
}

impl L4Kernel {
    /// Loads the programs onto the pinned maps, or onto new ones. The shield's maps are always new. Attaches nothing
    /// yet.
    ///
    /// Where the kernel refuses the programs whole, they are tried with the shield alone and with services alone; the
    /// part that is `needed` is tried first.
    pub fn load(size: MapSizes, hook: Hook, needed: u32, take_over: bool) -> Result<Self, KernelError> {
        let failed = |what: &'static str| move |source: io::Error| KernelError::Io { what, source };
        let pins = Pins::open(PinKind::Layer4, LAYER4, take_over).map_err(pins::unusable)?;
        let is_new = !pins.path("L4_CT_ESTABLISHED").exists();
        let earlier =
            OtherVersion::lock_all(PinKind::Layer4, "L4_CT_ESTABLISHED", take_over).map_err(pins::unusable)?;
        map_in_map::pin_tables(&pins.path("L4_TABLES"))
            .map_err(failed("making the map of tables (kernel 5.5 or later)"))?;
        // The shield's programs need the handshakes: tier `cut` must not record one that is answered with a SYN
        // cookie.
        let handshakes = pins::path(PinKind::Cut, "CUT_HANDSHAKES").map_err(failed("finding the maps of tier cut"))?;
        let has_handshakes = handshakes.exists();
        let attempt = |parts: u32| {
            let mut loader = EbpfLoader::new();
            loader.default_map_pin_directory(pins.dir());
            if has_handshakes {
                loader.map_pin_path("CUT_HANDSHAKES", &handshakes);
            }
            loader.map_max_entries("L4_CT_ESTABLISHED", size.flows.saturating_mul(2));
            loader.map_max_entries("SHIELD_SOURCES", size.sources.div_ceil(4));
            loader.map_max_entries("SHIELD_SHARED_PREFIXES", size.nodes.saturating_mul(2));
            loader.override_global(parts::SYMBOL, &parts, true);
            let temporary = TemporaryPins::new().and_then(|pins| pins.with_map_of_maps("SHIELD_GUARD_PREFIXES"));
            let temporary = temporary.map_err(failed("making the map of prefixes (kernel 5.10 or later)"))?;
            loader.map_pin_path("SHIELD_GUARD_PREFIXES", temporary.path("SHIELD_GUARD_PREFIXES"));
            let mut ebpf = loader.load(LAYER4).map_err(|e| KernelError::Load(Box::new(e)))?;
            drop(loader);
            hooks::load_programs(&mut ebpf, hook, parts).map(|refused| (ebpf, refused))
        };
        let mut missing = 0;
        let loaded = match attempt(parts::ALL) {
            Err(whole) if whole.is_permanent() => {
                let rest = [parts::SHIELD, parts::SERVICES];
                let found = rest.into_iter().filter(|part| part & needed != 0).find_map(|part| {
                    missing = parts::ALL & !(part | parts::CUT_V6);
                    attempt(part | parts::CUT_V6).ok()
                });
                found.ok_or(whole)
            }
            other => other,
        };
        // Maps are pinned before the verifier checks the programs, so those of a refused load would be left over.
        let (mut ebpf, refused) = loaded.inspect_err(|_| {
            if is_new {
                pins.clear();
            }
        })?;
        let unusable = |name: &'static str| {
            move |e| KernelError::Map {
                name,
                source: Box::new(e),
            }
        };
        if is_new {
            copy_targets(&earlier, &ebpf)?;
        }
        if let Err(error) = layout::pin(&pins.path(LAYOUT), &structures()) {
            tracing::warn!(%error, "Another version of signalbox will not be able to carry flows of services over.");
        }
        let names = Names::of(&ebpf)?;
        let map = ebpf.map("L4_HOSTS").ok_or(KernelError::NoMap("L4_HOSTS"))?;
        let known = Array::<_, Host>::try_from(map).map_err(unusable("L4_HOSTS"))?;
        let found_hosts = known.iter().collect::<Result<_, _>>().map_err(unusable("L4_HOSTS"))?;
        let fd = |name| map_fd(&ebpf, name);
        let (established, half_open, services, tables) = (
            fd("L4_CT_ESTABLISHED")?,
            fd("L4_CT_HALF_OPEN")?,
            fd("L4_SERVICES")?,
            fd("L4_TABLES")?,
        );
        let (hosts, ports, sources, config) = (
            fd("L4_HOSTS")?,
            fd("L4_HOST_PORTS")?,
            fd("L4_NAT_SOURCES")?,
            fd("L4_CONFIG")?,
        );
        let (wanted, one_way, macs) = (fd("L4_PORT_BITMAP")?, fd("L4_DSR_QUOTA")?, fd("L4_LOCAL_MACS")?);
        // A pinned table keeps the size that it was made with: two entries for each connection.
        let entries = match ebpf.map("L4_CT_ESTABLISHED") {
            Some(Map::HashMap(data)) => data.info().map_err(unusable("L4_CT_ESTABLISHED"))?.max_entries(),
            _ => return Err(KernelError::NoMap("L4_CT_ESTABLISHED")),
        };
        let shield = Shield::of(&mut ebpf)?;
        let mut take =
            |name: &'static str| -> Result<Map, KernelError> { ebpf.take_map(name).ok_or(KernelError::NoMap(name)) };
        let counters = PerCpuArray::try_from(take("COUNTERS")?).map_err(unusable("COUNTERS"))?;
        let service_tally = PerCpuArray::try_from(take("L4_SERVICE_STATS")?).map_err(unusable("L4_SERVICE_STATS"))?;
        let log = Mutex::new(program_log(&mut ebpf));
        let kernel = Self {
            log,
            hooks: Mutex::new(L4Hooks::new(ebpf, pins.clone(), parts::ALL & !missing, refused)),
            other_versions: Mutex::new(carry_over::OtherVersions::new(earlier)),
            pins,
            names,
            missing,
            established,
            half_open,
            services,
            tables,
            hosts,
            ports,
            sources,
            config,
            dsr_quota: one_way,
            max_dsr_flows: u64::from(entries / 2),
            macs,
            found_hosts,
            counters,
            service_stats: service_tally,
            port_bitmap: wanted,
            shield,
        };
        // An earlier process may have left as many direct-return flows as there may be: the first sweep counts them.
        kernel
            .set_dsr_flows(kernel.max_dsr_flows)
            .map_err(failed("making room for flows whose hosts answer by themselves"))?;
        Ok(kernel)
    }

    /// Returns the hosts that an earlier process left, by their numbers; all zero where there is none.
    #[must_use]
    pub fn found_hosts(&self) -> &[Host] {
        &self.found_hosts
    }

    pub fn set_service(&self, target: &Target, service: &Service) -> io::Result<()> {
        self.services.update(target, service)
    }

    pub fn remove_service(&self, target: &Target) -> io::Result<()> {
        self.services.delete(target)
    }

    pub fn service(&self, target: &Target) -> io::Result<Option<Service>> {
        self.services.get(target)
    }

    pub fn host(&self, number: u32) -> io::Result<Option<Host>> {
        self.hosts.get(&number)
    }

    /// Returns hosts' own ports, by service and host.
    pub fn own_ports(&self) -> io::Result<Vec<((u16, u32), u16)>> {
        let keys = self.ports.keys::<u32>()?;
        let port = |key: u32| {
            Some((
                ((key >> 16) as u16, key & 0xffff),
                self.ports.get::<u32, u32>(&key).ok()?? as u16,
            ))
        };
        Ok(keys.into_iter().filter_map(port).collect())
    }

    /// Returns the source address of an index.
    pub fn source(&self, index: u32) -> io::Result<Option<[u32; 4]>> {
        self.sources.get(&index)
    }

    /// Returns the targets in the map.
    pub fn targets(&self) -> io::Result<Vec<Target>> {
        self.services.keys()
    }

    pub fn set_host(&self, number: u32, host: &Host) -> io::Result<()> {
        assert!(number < MAX_HOSTS, "host {number}");
        self.hosts.update(&number, host)
    }

    /// Sets a service's port on a host, or removes it where the port is the one listened on.
    pub fn set_port(&self, service: u16, host: u32, port: Option<u16>) -> io::Result<()> {
        let key = u32::from(service) << 16 | (host & 0xffff);
        match port {
            Some(port) => self.ports.update(&key, &u32::from(port)),
            None => self.ports.delete(&key),
        }
    }

    pub fn set_source(&self, index: u32, address: &[u32; 4]) -> io::Result<()> {
        self.sources.update(&index, address)
    }

    pub fn set_config(&self, config: &L4Config) -> io::Result<()> {
        self.config.update(&0u32, config)
    }

    /// Returns the most established flows that the table has room for.
    #[must_use]
    pub fn max_flows(&self) -> u32 {
        u32::try_from(self.max_dsr_flows).unwrap_or(u32::MAX)
    }

    /// Returns the number of established direct-return flows, as counted by programs, and their limit.
    pub fn dsr_flows(&self) -> io::Result<DsrQuota> {
        self.dsr_quota.get(&0u32).map(Option::unwrap_or_default)
    }

    /// Sets the number of established direct-return flows.
    pub fn set_dsr_flows(&self, flows: u64) -> io::Result<()> {
        let most = self.max_dsr_flows;
        self.dsr_quota.update(&0u32, &DsrQuota { flows, max_flows: most })
    }

    /// Adds an Ethernet address of this machine; [`ALL_MACS`] once all of them are there.
    ///
    /// [`ALL_MACS`]: signalbox_common::l4::abi::ALL_MACS
    pub fn add_mac(&self, mac: u64) -> io::Result<()> {
        self.macs.update(&mac, &1u32)
    }

    /// Removes an Ethernet address that this machine no longer has.
    pub fn remove_mac(&self, mac: u64) -> io::Result<()> {
        self.macs.delete(&mac)
    }

    /// Replaces a table in one step.
    pub fn swap_table(&self, index: u32, slots: &[u16]) -> io::Result<()> {
        let mut bytes: Vec<u8> = slots.iter().flat_map(|slot| slot.to_ne_bytes()).collect();
        bytes.resize(TABLE_BYTES, 0xff);
        let table = new_table(&bytes)?;
        self.tables.update(&index, &(table.as_raw_fd() as u32))
    }

    /// Removes a table: it gives no host new flows any more.
    pub fn remove_table(&self, index: u32) -> io::Result<()> {
        self.tables.delete(&index)
    }

    /// Returns how often the programs ended for each reason.
    #[must_use]
    pub fn exit_counts(&self) -> Vec<(Reason, u64)> {
        crate::counters::exit_counts(&self.counters)
    }

    /// Returns how often the programs ended for this reason.
    #[must_use]
    pub fn exit_count(&self, reason: Reason) -> u64 {
        crate::counters::sum(&self.counters, reason as u32)
    }

    /// Returns the counters of a service's traffic.
    #[must_use]
    pub fn service_stats(&self, service: u16) -> ServiceStats {
        sum(&self.service_stats, u32::from(service))
    }

    /// Returns 64 bits that [`Self::set_port_bits`] has set; `None` where no port of them is wanted.
    #[must_use]
    pub fn port_bits(&self, word: u32) -> Option<u64> {
        self.port_bitmap.get(&word).ok().flatten().filter(|bits| *bits != 0)
    }

    /// Sets which of 64 ports have a target: see `PortBit`.
    pub fn set_port_bits(&self, word: u32, bits: u64) -> io::Result<()> {
        self.port_bitmap.update(&word, &bits)
    }

    /// Attaches to interfaces as [`L4Hooks::reconcile`] says. Flows of other versions are carried over first: our
    /// programs know them before they are attached.
    pub fn attach(&self, hook: Hook, look: bool) {
        let mut left = self.other_versions.lock();
        left.copy_flows(&self.established, &self.half_open);
        let mut hooks = self.hooks();
        hooks.reconcile(hook, look);
        if !hooks.attached().is_empty() {
            left.retire(&self.established, &self.half_open);
        }
    }

    /// Writes the programs' messages to our log.
    pub fn flush_log(&self) {
        if let Some(log) = &mut *self.log.lock() {
            log.flush();
        }
    }

    /// Locks the hooks.
    pub fn hooks(&self) -> parking_lot::MutexGuard<'_, L4Hooks> {
        self.hooks.lock()
    }

    /// Removes one direction of a flow, established or half-open.
    pub fn remove_flow(&self, key: &Key) -> io::Result<()> {
        self.established.delete(key)?;
        self.half_open.delete(key)
    }

    /// Removes one direction of an established flow; a half-open flow of the same key stays.
    pub fn end_flow(&self, key: &Key) -> io::Result<()> {
        self.established.delete(key)
    }

    /// Visits all flows of one map. `each` gets every entry once; entries that come or go during the visit once or
    /// never.
    pub fn for_each_flow(map: &MapFd, each: impl FnMut(&Key, &L4Flow)) -> io::Result<()> {
        map.for_each(each)
    }

    /// Removes everything that would outlive the process.
    pub fn remove_all(&self) -> io::Result<()> {
        detach().map(drop)
    }
}

/// Copies the numbers of services, hosts and source addresses of other versions, which their flows refer to. Errors are
/// logged only: flows whose numbers cannot be read fail when they are carried over.
fn copy_targets(earlier: &[OtherVersion], ebpf: &Ebpf) -> Result<(), KernelError> {
    let (names, hosts, sources) = (
        map_fd(ebpf, "ID_NAMES")?,
        map_fd(ebpf, "L4_HOSTS")?,
        map_fd(ebpf, "L4_NAT_SOURCES")?,
    );
    let to = carry_over::Targets {
        names: &names,
        hosts: &hosts,
        sources: &sources,
    };
    for one in earlier {
        if let Err(error) = carry_over::copy_targets(one, &to) {
            tracing::warn!(%error, version = one.version(), "Services of another version could not be read.");
        }
    }
    Ok(())
}

/// Removes everything of layer-4 services from this network namespace. The directory may be locked by us.
pub(super) fn detach() -> io::Result<Vec<std::path::PathBuf>> {
    hooks::remove_filters();
    pins::remove_all(PinKind::Layer4)
}

/// Returns whether an earlier process has left services in this network namespace.
#[must_use]
pub fn is_pinned() -> bool {
    pins::names(PinKind::Layer4).is_ok_and(|names| names.iter().any(|name| name == "L4_SERVICES"))
        || OtherVersion::all(PinKind::Layer4, "L4_CT_ESTABLISHED").is_ok_and(|all| !all.is_empty())
}

fn sum(map: &PerCpuArray<MapData, ServiceStats>, index: u32) -> ServiceStats {
    let all = map.get(&index, 0);
    all.map_or_else(
        |_| ServiceStats::default(),
        |values| values.iter().fold(ServiceStats::default(), ServiceStats::plus),
    )
}

/// Makes a table in the kernel, to be swapped in.
pub fn new_table(slots: &[u8]) -> io::Result<OwnedFd> {
    assert_eq!(slots.len(), TABLE_BYTES);
    let map = map::create_array("l4_slots", TABLE_BYTES as u32, 1, map::BPF_F_MMAPABLE)?;
    MapFd::new(map.as_fd())?.update_bytes(&0u32, slots)?;
    Ok(map)
}
