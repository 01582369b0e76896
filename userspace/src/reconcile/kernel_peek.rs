//! The kernel peek's tables, kept as the current snapshot requires, with its heartbeat and its counters.

mod answers;
mod conditions;
mod filter;
mod flows;
mod names;
mod paths;
mod reason;
mod slots;
mod start;
mod surroundings;
mod syn_timer;
mod sysctl;
mod tables;
mod written;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use signalbox_common::peek::abi::{
    MAX_ANSWERING, MAX_PEEK_SOURCES, PeekBinding, PeekConfig, PeekHost, PeekRoute, PeekSourceKey, protocol,
};
use signalbox_common::peek::cookie;
use signalbox_common::steer::SteerKey;
use signalbox_core::model::{Listener, Route};
use signalbox_core::routing::obstacle::PeekObstacle;
use signalbox_core::wire::address::ipv4_mapped;

use crate::datapath::cut::program_ports;
use crate::datapath::cut::registry::Registry;
use crate::datapath::report::Reports;
use crate::kernel::cut::table::tick;
use crate::kernel::{Cut, Peek};
use crate::reconcile::wakeups::Wakeups;
use crate::state::{Shared, Snapshot};
use answers::Answers;
pub use filter::FilterWatch;
use names::NameEntries;
pub use paths::follow_without_program;
pub use reason::{PeekQuestion, PeekReason};
use start::Verdict;
pub use start::note_refusal;
use sysctl::kernel_offers;
pub use tables::LeftOut;
use tables::{PeekHostKey, PeekTables};
use written::{Written, apply};

/// Interval at which the snapshot is checked and loads are written.
const PASS_INTERVAL: Duration = Duration::from_millis(20);

/// Interval of heartbeats, and of checks of interfaces and kernel settings.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which routes are read.
const ROUTES_INTERVAL: Duration = Duration::from_secs(2);

/// Time that the start waits for the tables.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// Time that a configuration change waits for the tables. After that they are written a little later.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for which clients may still have a cookie of a listener that the kernel no longer routes: two epochs.
const COOKIE_TTL: Duration = Duration::from_nanos(2 << cookie::EPOCH_SHIFT_NS);

pub struct KernelPeek {
    peek: Peek,
    cut: Arc<Cut>,
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    /// Reports about hosts that do not answer.
    reports: Reports,
    state: Mutex<Written>,
    /// Whether the program is attached to all interfaces: the kernel would refuse host answers that it does not see.
    attached: AtomicBool,
    /// Whether a packet socket receives IPv4 or IPv6 at an interface: passed-up packets would find no socket.
    is_shared: [AtomicBool; 2],
    /// Interfaces on which SYNs are answered if programs cannot ask the kernel for routes: for IPv4, and for IPv6.
    answering: Mutex<[[u32; MAX_ANSWERING]; 2]>,
    /// Virtual addresses that this machine has.
    present: Mutex<Vec<IpAddr>>,
    /// Whether the kernel's port range leaves ports for the program. The range is read with each heartbeat.
    has_ports: AtomicBool,
    /// Whether no host answers, see [`Answers`].
    has_no_answers: AtomicBool,
    answers: Mutex<Answers>,
    /// Whether interfaces have changed since the thread last checked them.
    looks_again: AtomicBool,
    stopping: AtomicBool,
    verdict: Verdict,
    /// Wake-ups of the thread. Only that thread makes tables: each thread that did would keep an allocator arena as
    /// large as the largest tables it ever made.
    wakeups: Wakeups,
}

impl KernelPeek {
    #[must_use]
    pub fn new(peek: Peek, cut: Arc<Cut>, registry: Arc<Registry>, shared: Arc<Shared>, reports: Reports) -> Arc<Self> {
        // Set once, because a process has only one.
        let _ = shared.kernel.chosen_hosts.set(peek.chosen_hosts());
        let _ = shared.kernel.cookie_keys.set(peek.cookie_keys());
        let this = Arc::new(Self {
            peek,
            cut,
            registry,
            shared,
            reports,
            state: Mutex::new(Written::new()),
            attached: AtomicBool::new(false),
            is_shared: [AtomicBool::new(true), AtomicBool::new(true)],
            answering: Mutex::default(),
            present: Mutex::default(),
            has_ports: AtomicBool::new(program_ports().is_some()),
            has_no_answers: AtomicBool::new(false),
            answers: Mutex::default(),
            looks_again: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            verdict: Verdict::default(),
            wakeups: Wakeups::default(),
        });
        this.follow_snapshots();
        this
    }

    /// Work of the thread: tables, heartbeats and checks of the machine, until the process stops.
    fn keep_tables(&self) {
        let (mut beaten, mut routes_read): (Option<Instant>, Option<Instant>) = (None, None);
        let (mut handled, mut pause) = (0, Duration::ZERO);
        while let Some(woken) = self.wakeups.next(handled, pause)
            && !self.stopping.load(Relaxed)
        {
            let looks_again = self.looks_again.swap(false, Relaxed);
            if looks_again || beaten.is_none_or(|beaten| beaten.elapsed() > HEARTBEAT_INTERVAL) {
                beaten = Some(Instant::now());
                if routes_read.is_none_or(|read| read.elapsed() > ROUTES_INTERVAL) {
                    routes_read = beaten;
                    self.look_for_routes();
                }
                let written = self.state.lock();
                // Checked again under the lock: after the stop, a heartbeat would make the program answer SYNs again.
                if self.stopping.load(Relaxed) {
                    break;
                }
                if let Err(error) = self.show_life(&written) {
                    tracing::warn!(%error, "The settings of the kernel peek could not be written.");
                }
                drop(written);
                self.has_ports.store(program_ports().is_some(), Relaxed);
                self.look_for_packet_sockets();
                self.look_for_addresses();
                self.look_for_answers();
                self.follow_interfaces();
                self.attached.store(true, Relaxed);
            }
            self.follow();
            (handled, pause) = (woken, PASS_INTERVAL);
        }
    }

    /// Leaves SYNs to the listening sockets, and connections whose SYN was answered too. If a successor has the
    /// sockets, its program takes these connections: it accepts the same cookies.
    pub fn stop(&self, has_successor: bool) {
        self.stopping.store(true, Relaxed);
        let mut written = self.state.lock();
        self.peek.end(has_successor);
        let mut bindings: Vec<_> = written.bindings.drain().map(|(key, _)| key).collect();
        bindings.extend(written.passing_up.drain().map(|(key, _)| key));
        let gone = if has_successor {
            bindings.into_iter().try_for_each(|key| self.peek.unbind(key))
        } else {
            // The bindings stay for clients that have a cookie: their data is passed up.
            Ok(())
        };
        let config = PeekConfig {
            alive_until: tick(),
            ..self.config()
        };
        if let Err(error) = gone.and_then(|()| self.peek.set_config(config)) {
            tracing::warn!(%error, "The kernel peek could not be stopped.");
        }
    }

    /// Detaches the program, where it would stay at interfaces when the process has ended.
    pub fn leave(&self) {
        self.peek.leave();
    }

    /// Returns how often the program ended for each reason.
    #[must_use]
    pub fn exit_counts(&self) -> Vec<(signalbox_common::Reason, u64)> {
        self.peek.exit_counts()
    }

    fn outlives_process(&self) -> bool {
        self.shared.snapshot.load().model.datapath.serves_orphaned
    }

    /// Detaches programs of earlier processes, once this process has written its tables. `predecessor`: pid of one that
    /// drains. Returns how many.
    pub fn replace_orphans(&self, predecessor: Option<u32>) -> io::Result<usize> {
        self.peek.replace_orphans(self.outlives_process(), predecessor)
    }

    fn config(&self) -> PeekConfig {
        let cpus = self.peek.cpus();
        let (first, last) = program_ports().map_or((0, 0), std::ops::RangeInclusive::into_inner);
        let table = &self.cut.table;
        let of_programs = table.own_len() - table.worker_len();
        let outlives = self.outlives_process();
        PeekConfig {
            key: [0; 2],
            alive_until: PeekConfig::sign_of_life(tick(), outlives),
            first_flow: table.worker_len(),
            flows: of_programs / cpus,
            first_port: u32::from(first),
            ports: if last == 0 {
                0
            } else {
                (u32::from(last - first) + 1) / cpus
            },
            cpus,
            offers: kernel_offers(),
            mss: self.cut.mss(),
            tables: 0,
            nodes: self.shared.node.nodes.into(),
            slot: self.shared.node.slot.into(),
            answering: *self.answering.lock(),
            outlives: outlives.into(),
            repairs: self.repairs(),
            ..self.limits()
        }
    }

    /// The limits of all listeners.
    fn limits(&self) -> PeekConfig {
        let model = &self.shared.snapshot.load().model;
        let limits_sources = |listener: &Listener| {
            let shield = listener.shield.as_ref();
            shield.is_some_and(|shield| shield.limits.concurrent != 0)
        };
        PeekConfig {
            seed: self.shared.seed,
            id_seed: self.shared.connection_ids.seed(),
            of_source: model.limits.per_source.concurrent,
            in_all: model.limits.max_connections.unwrap_or(0),
            per_second: model.limits.per_source.per_second,
            of_listeners: model.listeners.iter().any(limits_sources).into(),
            ..PeekConfig::default()
        }
    }

    /// Writes the settings. `written` shows whether the tables are complete.
    fn show_life(&self, written: &Written) -> io::Result<()> {
        let tables = written.version;
        self.peek.set_config(PeekConfig {
            tables,
            ..self.config()
        })
    }

    /// Writes the tables of the current snapshot, and the loads of hosts.
    fn follow(&self) {
        let mut written = self.state.lock();
        if self.stopping.load(Relaxed) || !self.attached.load(Relaxed) {
            return;
        }
        let (snapshot, conditions) = (self.shared.snapshot.load_full(), self.conditions());
        if !written.is_of(&snapshot, &conditions) {
            let tables = PeekTables::of(&snapshot, &self.registry, &conditions, self.shared.seed);
            match self.write(&mut written, tables) {
                Ok(()) => {
                    paths::show(&written, &snapshot, &conditions);
                    written.made_of = Some((snapshot, conditions));
                }
                Err(error) => tracing::warn!(%error, "The tables of the kernel peek could not be written."),
            }
            written.made = Some(Instant::now());
        }
        // The program may have lowered a count that it had raised too far, and wakes nobody.
        for cluster in &self.shared.snapshot.load().clusters {
            cluster.wake_waiting();
        }
        let over = written.passing_up.extract_if(|_, since| since.elapsed() > COOKIE_TTL);
        for (key, _) in over {
            if let Err(error) = self.peek.unbind(key) {
                tracing::warn!(%error, "A binding of the kernel peek could not be removed.");
            }
        }
    }

    /// Writes tables, which belong together: while they are being written, or after a failure, the program passes
    /// connections up.
    fn write(&self, written: &mut Written, mut tables: PeekTables) -> io::Result<()> {
        let now = Instant::now();
        written.give_elements(&mut tables, now);
        let index_of = |key: &PeekHostKey| written.host_slots.get(key);
        let clusters: HashMap<_, _> = tables
            .clusters
            .iter()
            .filter_map(|(index, cluster)| {
                let maglev = written.maglev_slots.get(index);
                Some((*index, cluster.to_entry(maglev, index_of)?))
            })
            .collect();
        let maglev: HashMap<_, _> = tables
            .clusters
            .iter_mut()
            .filter_map(|(index, cluster)| Some((written.maglev_slots.get(index)?, cluster.maglev.take()?)))
            .collect();
        let is_whole = |route: &PeekRoute| {
            let used = route.turn.iter().take(route.turns as usize);
            let mut clusters_used = used.filter_map(|at| route.clusters.get(usize::from(*at)));
            clusters_used.all(|index| clusters.contains_key(&u32::from(*index)))
        };
        let (mut routes, mut without_room) = (HashMap::new(), Vec::new());
        for (name, route) in &tables.routes {
            match written.tickets.get(name) {
                Some(ticket) if is_whole(route) => _ = routes.insert(*name, PeekRoute { ticket, ..*route }),
                _ => without_room.push(*name),
            }
        }
        let left_out = tables.route_obstacles.keys().chain(&without_room).copied();
        let names = NameEntries::new(routes, left_out, &tables.wildcards);
        for _ in without_room.iter().chain(&names.without_room) {
            tables.leave_out("route", PeekObstacle::TableFull);
        }
        let sources = tables.sources.iter().filter_map(|((moving, host), source)| {
            let key = PeekSourceKey {
                moving: *moving,
                host: index_of(host)?,
            };
            Some((key, *source))
        });
        let mut sources: HashMap<_, _> = sources.collect();
        if sources.len() > MAX_PEEK_SOURCES as usize {
            // Connections use addresses that do not move, and end when their virtual address does: first of all those of
            // virtual addresses that have not come yet.
            sources.retain(|key, _| key.moving < tables.first_awaited);
            if sources.len() > MAX_PEEK_SOURCES as usize {
                sources.clear();
            }
            tables.leave_out("source", PeekObstacle::TableFull);
        }
        let hosts = self.follow_hosts(written, &tables);
        written.left_out = std::mem::take(&mut tables.left_out);
        written.listener_obstacles = std::mem::take(&mut tables.listener_obstacles);
        written.route_obstacles = std::mem::take(&mut tables.route_obstacles);
        let limits = self.limits();
        let is_same = written.version & 1 == 0
            && (
                &limits,
                &tables.limits,
                &hosts,
                &clusters,
                &maglev,
                &tables.clients,
                &sources,
                &names,
                &tables.bindings,
            ) == (
                &written.limits_of_all,
                &written.limits,
                &written.entries,
                &written.clusters,
                &written.maglev,
                &written.clients,
                &written.sources,
                &written.names,
                &written.bindings,
            );
        if is_same {
            return Ok(());
        }
        written.version |= 1;
        written.limits_of_all = limits;
        self.show_life(written)?;
        apply(&mut written.limits, tables.limits, |key, limits| {
            self.peek.set_limits(*key, limits)
        })?;
        apply(&mut written.entries, hosts, |index, host| {
            if let Some(host) = host {
                self.peek.set_host(*index, host);
            }
            Ok(())
        })?;
        apply(&mut written.maglev, maglev, |index, table| match table {
            Some(table) => self.peek.set_maglev(*index, table),
            None => Ok(()),
        })?;
        apply(&mut written.clients, tables.clients, |key, is_routed| {
            self.peek.set_client(*key, is_routed)
        })?;
        apply(&mut written.sources, sources, |key, source| {
            self.peek.set_source(key, source)
        })?;
        apply(&mut written.clusters, clusters, |index, cluster| match cluster {
            Some(cluster) => self.peek.set_cluster(*index, cluster),
            // No route leads to the element any more.
            None => Ok(()),
        })?;
        apply(
            &mut written.names.wildcards,
            names.wildcards,
            |name, wildcard| match wildcard {
                Some(wildcard) => self.peek.set_wildcard(name, wildcard),
                None => self.peek.remove_wildcard(name),
            },
        )?;
        apply(&mut written.names.routes, names.routes, |name, route| match route {
            Some(route) => self.peek.set_route(name, route),
            None => self.peek.remove_route(name),
        })?;
        written.names.without_room = names.without_room;
        let Written {
            bindings, passing_up, ..
        } = written;
        let floating = self.shared.snapshot.load();
        let may_move = |key: &SteerKey| floating.floating.vips().any(|vip| ipv4_mapped(vip) == key.addr);
        apply(bindings, tables.bindings, |key, binding| {
            let binding = binding.copied().unwrap_or_else(|| PeekBinding {
                // An address that moves may be elsewhere by now: the program asks.
                is_awaited: may_move(&key.1).into(),
                ..PeekBinding::default()
            });
            if binding.protocol == protocol::PASS_UP {
                passing_up.insert(*key, now);
            } else {
                passing_up.remove(key);
            }
            self.peek.bind(*key, &binding)
        })?;
        written.version = written.version.wrapping_add(1);
        self.show_life(written)
    }

    /// Notes which elements hosts have: a host's state, and its word, live as long as its element. Returns the elements'
    /// entries.
    fn follow_hosts(&self, written: &mut Written, tables: &PeekTables) -> HashMap<u32, PeekHost> {
        let (mut hosts, mut entries) = (HashMap::new(), HashMap::new());
        for (key, (host, state)) in &tables.hosts {
            let Some(index) = written.host_slots.get(key) else {
                continue;
            };
            if written.new_hosts.remove(&index) {
                self.peek.clear_host(index);
                written.entries.remove(&index);
            }
            hosts.insert(key.clone(), (index, Arc::clone(state)));
            entries.insert(index, *host);
        }
        written.hosts = hosts;
        entries
    }

    /// Returns all reasons for which connections at a listener are left to userspace. Empty: the program routes them if
    /// it understands their first data.
    #[must_use]
    pub fn reasons(&self, snapshot: &Arc<Snapshot>, question: &PeekQuestion<'_>) -> Vec<PeekReason> {
        if let Some(why) = self.verdict.obstacle() {
            return question.reasons_without_program(snapshot, &self.shared.kernel.filter_verdicts.load(), why);
        }
        let listener = question.listener;
        let conditions = self.conditions();
        let mut found = question.reasons(snapshot, conditions.reasons(listener, question.client));
        let route = question.route.and_then(|at| snapshot.model.routes.get(at));
        let in_tables = route.and_then(|route| self.obstacle_in_tables(snapshot, listener, route));
        let is_new = |reason: &PeekReason| found.iter().all(|known| known.obstacle != reason.obstacle);
        if let Some(reason) = in_tables.filter(is_new) {
            found.push(reason);
        }
        found
    }

    /// Returns why the tables lack a listener or a route that the configuration would route in the kernel.
    fn obstacle_in_tables(&self, snapshot: &Arc<Snapshot>, listener: &Listener, route: &Route) -> Option<PeekReason> {
        let name = tables::name_of(route, listener.protocol)?;
        let written = self.state.lock();
        let is_current = written
            .made_of
            .as_ref()
            .is_some_and(|(of, _)| Arc::ptr_eq(of, snapshot));
        if !is_current {
            return None;
        }
        if let Some(&obstacle) = written.listener_obstacles.get(&listener.name) {
            return Some(PeekReason::of_machine(obstacle));
        }
        let obstacle = written.obstacle_of_name(&name)?;
        Some(PeekReason::new(obstacle, format!("route {}", route.hostname)))
    }

    /// Returns how many items are left to userspace, by kind and reason.
    #[must_use]
    pub fn left_out(&self) -> LeftOut {
        self.state.lock().left_out.clone()
    }

    /// Returns how many names have a route in the kernel, counted separately for each protocol.
    #[must_use]
    pub fn routes(&self) -> usize {
        self.state.lock().names.len()
    }
}
