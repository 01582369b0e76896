//! Planned moves of addresses. The former owner continues to serve the connections that cannot move along, and the new
//! owner sends it their packets.
//!
//! Before a group leaves, its owner makes its addresses local without an interface, and informs the other nodes
//! ([`HandOver`]). After the move, the new owner's program sends packets without a flow or socket of its own to the
//! former owner's Ethernet address. When the drain is over, the remaining connections are reset.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_common::cut::moving::role;
use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::availability::sync::{HandOver, MAX_HANDED_OVER, Message, MovedAddress};
use signalbox_core::model::ha::VipGroup;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::{MissedTickBehavior, sleep};

use super::connection::SILENCE_TIMEOUT;
use super::{Node, Peer, reclaim};
use crate::kernel::address::{from_words, to_words};
use crate::kernel::cut::moving::is_over;
use crate::kernel::cut::table::{tick, ticks_of};
use crate::kernel::netlink::Netlink;
use crate::kernel::sock_diag::SockDiag;
use crate::kernel::{Cut, interfaces};
use crate::state::Shared;
use crate::state::sync::{HandOverRequest, PeerState, PlannedMove, Rejection};

/// Time limit for other nodes to be connected and to confirm a hand-over. A node that says nothing for as long is not connected any more. The
/// kernel of a node whose containers' network namespaces are being removed takes a second and more to change a route.
const TELL_TIMEOUT: Duration = SILENCE_TIMEOUT;
const TELL_INTERVAL: Duration = Duration::from_millis(5);
/// Time after which a hand-over is sent again to a node that has not confirmed it.
const REPEAT_INTERVAL: Duration = Duration::from_millis(250);
/// Time for a group to leave. After that, the hand-over is taken back.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time with `signalbox ha run`: `signalbox ha release` has stopped waiting by then (userspace/cli/src/ha.rs).
const SUPERVISED_LEAVE_TIMEOUT: Duration = Duration::from_secs(35);
const LEAVE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of checks for ended drains.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Total time for a hand-over.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

/// Prepares a planned move of a group: its connections drain here for a while. Returns the names of the nodes that send
/// their packets here, or the reason why none does.
pub async fn request(shared: &Shared, group: &str, period: Duration) -> Result<Vec<String>, String> {
    let Some(moves) = shared.sync.planned_moves.load_full() else {
        return Err("flows are not replicated (`ha.sync`)".into());
    };
    let (reply, answered) = oneshot::channel();
    let request = HandOverRequest {
        group: group.to_owned(),
        period,
        reply,
    };
    let _ = moves.send(PlannedMove::HandOver(request));
    match tokio::time::timeout(ANSWER_TIMEOUT, answered).await {
        Ok(Ok(outcome)) => outcome,
        _ => Err("replication does not answer".into()),
    }
}

/// Prepares moves on request, and ends drains.
pub(super) async fn run(node: Rc<Node>) {
    let (sender, mut requests) = mpsc::unbounded_channel();
    node.shared.sync.planned_moves.store(Some(Arc::new(sender)));
    remove_stray_routes(&node).await;
    spawn_local(sweep_when_asked(Rc::clone(&node)));
    let mut owned = node.shared.ha.subscribe();
    let mut sweeps = tokio::time::interval(SWEEP_INTERVAL);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(request) = requests.recv() => {
                let node = Rc::clone(&node);
                spawn_local(async move {
                    match request {
                        PlannedMove::HandOver(request) => answer(&node, request).await,
                        PlannedMove::Reclaim(request) => reclaim::ask(&node, request).await,
                    }
                });
            }
            Ok(()) = owned.changed() => {
                owned.borrow_and_update();
                node.sweeps.notify_one();
            }
            _ = sweeps.tick() => node.sweeps.notify_one(),
        }
    }
}

async fn answer(node: &Node, request: HandOverRequest) {
    let outcome = prepare(node, &request.group, request.period).await;
    let has_begun = outcome.is_ok();
    let _ = request.reply.send(outcome);
    let limit = if node.shared.ha.is_supervised() {
        SUPERVISED_LEAVE_TIMEOUT
    } else {
        LEAVE_TIMEOUT
    };
    await_leave(node, &request.group, has_begun, limit).await;
}

/// Hands a group over, which counts as leaving from now on. Returns the names of the nodes that know of it.
pub(super) async fn prepare(node: &Node, group: &str, period: Duration) -> Result<Vec<String>, String> {
    *node.leaving.borrow_mut().entry(group.to_owned()).or_default() += 1;
    node.shared.ha.set_leaving(group, true);
    let outcome = hand_over(node, group, period).await;
    match &outcome {
        Ok(told) => {
            let (told, seconds) = (told.join(", "), period.as_secs());
            tracing::info!(
                group,
                told,
                seconds,
                "A group is handed over: its connections drain here."
            );
        }
        Err(why) => tracing::info!(group, why, "Connections of a group that leaves do not drain here."),
    }
    outcome
}

/// Waits until a group whose hand-over has begun has left, up to the limit.
pub(super) async fn await_leave(node: &Node, group: &str, has_begun: bool, limit: Duration) {
    let began = Instant::now();
    while has_begun && node.shared.ha.owned().contains(group) && began.elapsed() < limit {
        sleep(LEAVE_INTERVAL).await;
    }
    let mut leaving = node.leaving.borrow_mut();
    if let Some(count) = leaving.get_mut(group) {
        *count -= 1;
        if *count == 0 {
            leaving.remove(group);
            node.shared.ha.set_leaving(group, false);
        }
    }
    drop(leaving);
    // A group that has not left belongs to this node again.
    node.sweeps.notify_one();
}

/// Prepares to give a group up. Returns the names of the nodes that know of it.
async fn hand_over(node: &Node, group: &str, period: Duration) -> Result<Vec<String>, String> {
    let addresses = addresses_of_group(node, group)?;
    let moved = off_thread(node, move || addresses_here(&addresses)).await?;
    let addresses: Vec<_> = moved.iter().map(|moved| from_words(moved.address)).collect();
    let seconds = period.as_secs().min(u16::MAX.into()) as u16;
    if seconds == 0 {
        return Err("the time for connections to drain is less than a second".into());
    }
    let is_connected = |peer: &Peer| peer.state.is_sending.load(Relaxed);
    let began = Instant::now();
    while !node.peers.iter().any(is_connected)
        && node.peers.iter().any(Peer::is_there)
        && began.elapsed() < TELL_TIMEOUT
    {
        sleep(TELL_INTERVAL).await;
    }
    let peers: Vec<_> = node
        .peers
        .iter()
        .filter(|peer| peer.state.is_sending.load(Relaxed))
        .collect();
    if peers.is_empty() {
        return Err("no other node is connected".into());
    }
    let until = tick().wrapping_add(ticks_of(Duration::from_secs(seconds.into())));
    let (cut, given_up) = (Arc::clone(&node.cut), addresses.clone());
    let begun = off_thread(node, move || cut.begin_draining(&given_up, until)).await;
    begun.map_err(|error| format!("local routes cannot be added: {error}"))?;
    let knows = |state: &PeerState| state.knows_hand_over.load(Relaxed);
    for peer in &peers {
        peer.state.knows_hand_over.store(false, Relaxed);
    }
    let (asked, mut tries) = (Instant::now(), 0);
    while !peers.iter().all(|peer| knows(&peer.state)) && began.elapsed() < TELL_TIMEOUT {
        // A connection may end before it has delivered the message. A node that gets it twice does the same again.
        if asked.elapsed() >= REPEAT_INTERVAL * tries {
            tries += 1;
            for peer in peers.iter().filter(|peer| !knows(&peer.state)) {
                peer.queue.add_move(message(seconds, moved.clone()));
            }
        }
        sleep(TELL_INTERVAL).await;
    }
    let told: Vec<_> = peers
        .iter()
        .filter(|peer| knows(&peer.state))
        .map(|peer| peer.name.clone())
        .collect();
    if told.is_empty() {
        // Another hand-over, of which other nodes know, may be under way.
        if node.leaving.borrow().get(group) == Some(&1) {
            let turn = node.kernel_work.lock().await;
            take_back(node, addresses, &turn).await;
        }
        return Err(format!(
            "no other node has answered within {} s",
            TELL_TIMEOUT.as_secs()
        ));
    }
    Ok(told)
}

fn message(seconds: u16, addresses: Vec<MovedAddress>) -> Message {
    Message::HandOver(Box::new(HandOver { seconds, addresses }))
}

/// Runs work that may block in the kernel for seconds, because of others that change its interfaces and routes (such as
/// a container runtime). Other nodes still hear from this one. One after another, in call order.
async fn off_thread<T: Send + 'static>(node: &Node, work: impl FnOnce() -> T + Send + 'static) -> T {
    let _turn = node.kernel_work.lock().await;
    in_other_thread(work).await
}

/// Like [`off_thread`], for a caller that already has its turn.
async fn in_other_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

async fn remove_stray_routes(node: &Node) {
    let cut = Arc::clone(&node.cut);
    match off_thread(node, move || cut.remove_stray_routes()).await {
        Ok(0) => {}
        Ok(routes) => tracing::info!(
            routes,
            "Local routes that an earlier process has left have been removed."
        ),
        Err(error) => tracing::warn!(%error, "Local routes of an earlier process could not be removed."),
    }
}

/// All addresses of a configured group.
fn addresses_of_group(node: &Node, group: &str) -> Result<Vec<IpAddr>, String> {
    let snapshot = node.shared.snapshot.load_full();
    let mut groups = snapshot.model.ha.iter().flat_map(|ha| &ha.groups);
    let found = groups.find(|one| one.name == group);
    found
        .map(|group| addresses_of(group).collect())
        .ok_or_else(|| format!("the configuration has no group `{group}`"))
}

/// Addresses of a group that an Ethernet interface of this machine has, with its Ethernet address.
fn addresses_here(addresses: &[IpAddr]) -> Result<Vec<MovedAddress>, String> {
    let links = Netlink::open().and_then(|netlink| netlink.links());
    let links = links.map_err(|error| format!("the kernel does not tell its interfaces: {error}"))?;
    let moved = |address: IpAddr| {
        let interface = interfaces::name_of_address(address)?;
        let link = links.values().find(|link| link.name == interface && link.is_ethernet)?;
        Some(MovedAddress {
            address: to_words(address),
            mac: link.mac,
        })
    };
    let here = addresses.iter().copied().filter_map(moved);
    let here: Vec<_> = here.take(MAX_HANDED_OVER).collect();
    if here.is_empty() {
        return Err("no Ethernet interface of this node has one of its addresses".into());
    }
    Ok(here)
}

fn addresses_of(group: &VipGroup) -> impl Iterator<Item = IpAddr> {
    let sources = group.sources.iter().map(|source| source.address);
    group.vips.iter().copied().chain(sources)
}

/// Stores another node's hand-over.
pub(super) fn learn(node: &Rc<Node>, peer: &PeerState, hand_over: &HandOver) {
    let snapshot = node.shared.snapshot.load_full();
    let until = tick().wrapping_add(ticks_of(Duration::from_secs(hand_over.seconds.into())));
    for moved in &hand_over.addresses {
        let address = from_words(moved.address);
        let is_machine = moved.mac != [0; 6] && moved.mac[0] & 1 == 0;
        if !is_machine || !snapshot.floating.moves(address) {
            peer.rejected[Rejection::OtherAddresses as usize].inc();
            continue;
        }
        let outcome = match segment_of(node, address) {
            _ if hand_over.seconds == 0 => node.cut.unchain(address),
            Some(ifindex) => node.cut.chain_to(address, ifindex, moved.mac, until),
            None => continue,
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, %address, node = peer.node, "Packets of an address cannot be sent to its former owner.");
        }
    }
    // Routes left by an earlier process, unknown to this one.
    let this = Rc::clone(node);
    spawn_local(async move { remove_stray_routes(&this).await });
    node.sweeps.notify_one();
    let (addresses, seconds) = (hand_over.addresses.len(), hand_over.seconds);
    tracing::info!(
        node = peer.node,
        addresses,
        seconds,
        "Another node hands addresses over."
    );
}

/// Index of the interface on whose segment an address is: that of the configuration, or of the route to it.
fn segment_of(node: &Node, address: IpAddr) -> Option<u32> {
    let snapshot = node.shared.snapshot.load_full();
    let ha = snapshot.model.ha.as_ref()?;
    let sources = ha.groups.iter().flat_map(|group| &group.sources);
    let source = sources.into_iter().find(|source| source.address == address);
    let named = source
        .and_then(|source| source.interface.clone())
        .or_else(|| ha.interface.clone());
    let index = |name: String| nix::net::if_::if_nametoindex(name.as_str()).ok();
    if let Some(named) = named {
        return index(named);
    }
    let hop = Netlink::open().ok()?.route_get(address).ok()??;
    if hop.is_local {
        return interfaces::name_of_address(address).and_then(index);
    }
    Some(hop.ifindex)
}

/// Runs a sweep whenever one is requested.
async fn sweep_when_asked(node: Rc<Node>) {
    loop {
        node.sweeps.notified().await;
        if let Err(error) = sweep(&node).await {
            tracing::warn!(%error, "Addresses that have moved could not be maintained; retrying.");
        }
    }
}

/// Ends drains whose time is over, and those of addresses that this node has again.
async fn sweep(node: &Node) -> std::io::Result<()> {
    // Held until the sweep is done, so that a new hand-over cannot begin before its results are used.
    let turn = node.kernel_work.lock().await;
    let snapshot = node.shared.snapshot.load_full();
    let (mut given_up, mut over, mut back, mut chained) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (address, entry) in node.cut.moving_addresses()? {
        if entry.has_role(role::NEW_OWNER) {
            if is_over(&entry) {
                node.cut.unchain(address)?;
            } else {
                chained += 1;
            }
        }
        if !entry.has_role(role::FORMER_OWNER) {
            continue;
        }
        if is_here_again(node, &snapshot.floating, address) {
            back.push(address);
        } else if is_over(&entry) {
            over.push(address);
        } else {
            given_up.push(address);
        }
    }
    if !back.is_empty() {
        take_back(node, back, &turn).await;
    }
    if !over.is_empty() {
        let cut = Arc::clone(&node.cut);
        in_other_thread(move || end(&cut, &over)).await?;
    }
    drop(turn);
    let sync = &node.shared.sync;
    let is_virtual = |address: IpAddr| given_up.contains(&address) && snapshot.floating.group_of(address).is_some();
    let draining = if given_up.is_empty() {
        0
    } else {
        SockDiag::open()?.connections(is_virtual)?.len()
    };
    sync.draining_connections.store(draining as u64, Relaxed);
    sync.addresses_given_up.store(given_up.len() as u64, Relaxed);
    sync.addresses_chained.store(chained, Relaxed);
    Ok(())
}

/// Whether this node has an address again that was handed over.
fn is_here_again(node: &Node, floating: &FloatingSources, address: IpAddr) -> bool {
    let is_source = |group: &usize| floating.is_source_of(*group, address);
    let group = floating
        .group_of(address)
        .or_else(|| (0..floating.group_count()).find(is_source));
    let Some(name) = group.and_then(|group| floating.name_of(group)) else {
        return false;
    };
    node.shared.ha.owned().contains(name) && !node.leaving.borrow().contains_key(name)
}

/// Takes a hand-over back: the addresses belong to this node.
async fn take_back(node: &Node, addresses: Vec<IpAddr>, _turn: &tokio::sync::MutexGuard<'_, ()>) {
    let (cut, here) = (Arc::clone(&node.cut), addresses.clone());
    if let Err(error) = in_other_thread(move || cut.end_draining(&here)).await {
        tracing::warn!(%error, "Local routes of addresses that are here could not be removed.");
    }
    let moved = |address: &IpAddr| MovedAddress {
        address: to_words(*address),
        // The receivers do not use it.
        mac: [2, 0, 0, 0, 0, 0],
    };
    for peer in &node.peers {
        peer.queue.add_move(message(0, addresses.iter().map(moved).collect()));
    }
}

/// Ends a drain: resets the remaining connections while their packets can still be sent. Not at addresses that are here
/// again, where connections of other programs may continue.
fn end(cut: &Cut, addresses: &[IpAddr]) -> std::io::Result<()> {
    let has_left = |address: &IpAddr| interfaces::name_of_address(*address).is_none();
    let left: Vec<_> = addresses.iter().copied().filter(has_left).collect();
    match cut.reset_connections(&left) {
        Ok(connections) => tracing::info!(connections, "A drain is over: remaining connections have been reset."),
        Err(error) => tracing::warn!(%error, "Connections that are left at the end of a drain could not be reset."),
    }
    cut.end_draining(addresses)
}

/// Ends all drains of this node, because its process ends.
pub fn end_all(cut: &Cut) {
    let ended = cut.moving_addresses().and_then(|all| {
        let mine = all.into_iter().filter(|(_, entry)| entry.has_role(role::FORMER_OWNER));
        let mine: Vec<_> = mine.map(|(address, _)| address).collect();
        if mine.is_empty() { Ok(()) } else { end(cut, &mine) }
    });
    let ended = ended.and_then(|()| cut.remove_stray_routes().map(drop));
    if let Err(error) = ended {
        tracing::warn!(%error, "Local routes of addresses that have left could not be removed.");
    }
}
