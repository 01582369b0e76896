//! Sends this node's flows to another node.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use signalbox_common::cut::CutFlow;
use signalbox_common::cut::flow::{SOCKETS_CLOSED, TS_DELTA_KNOWN, TS_DELTA_UNKNOWN, state};
use signalbox_core::availability::ha::floating::FloatingSources;
use signalbox_core::availability::sync::{FlowRecord, Message, Name};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::connection::{HANDSHAKE_TIMEOUT, LinkError, Reader, prepare, send_hello};
use super::services::{ServiceChanges, ServicePass};
use super::{Node, Peer, cookies};
use crate::kernel::Cut;
use crate::kernel::address::from_words;
use crate::kernel::cut::entry_set::EntrySet;
use crate::state::service_flows::ServiceKeys;
use crate::state::sync::PeerState;

/// Time between attempts to reach a node.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Time before connecting again to a node that has closed a connection. The node has lost addresses and gets all flows
/// from the beginning; until then it learns of no new flow.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of messages when there is nothing else to send, so that a dead peer is detected by missing answers.
const PING_INTERVAL: Duration = Duration::from_millis(250);
/// Size at which a batch is closed. Further changes stay in the flow table.
const MAX_BATCH_BYTES: usize = 256 << 10;
/// Maximum number of messages about planned moves that wait for a batch.
const MAX_WAITING_MOVES: usize = 1024;
/// Maximum number of unanswered batches.
const MAX_UNANSWERED: usize = 16;
/// Maximum time to wait for flows of new groups before a full pass, and the interval of checks.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_secs(1);
const TAKE_OVER_INTERVAL: Duration = Duration::from_millis(10);
/// Interval at which the key of SYN cookies is told again, with its clock. Clocks of machines differ by 0.1 ms in a second
/// at most.
const COOKIE_KEY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks of flows that were sent without a timestamp offset.
const OFFSETS_INTERVAL: Duration = Duration::from_secs(2);

/// Changes to report to a peer, and flows that were reported to it.
pub(super) struct PeerChanges {
    /// Entries that have changed.
    pub(super) dirty: EntrySet,
    /// Entries whose flows the peer has.
    sent: EntrySet,
    /// Flows that were sent before both timestamp offsets were known.
    without_offsets: RefCell<HashSet<u32>>,
    /// Time of the oldest change that is not in a batch.
    since: Cell<Option<Instant>>,
    changed: Notify,
    services: ServiceChanges,
    /// Messages about planned moves that are not in a batch yet.
    moves: RefCell<Vec<Message>>,
}

impl PeerChanges {
    pub(super) fn new(cut: &Cut) -> Self {
        let set = || EntrySet::new(cut.table.len());
        Self {
            dirty: set(),
            sent: set(),
            without_offsets: RefCell::default(),
            since: Cell::new(None),
            changed: Notify::new(),
            services: ServiceChanges::default(),
            moves: RefCell::default(),
        }
    }

    /// Queues a message about a planned move for the peer. A peer that asks repeatedly without reading gets no answer.
    pub(super) fn add_move(&self, message: Message) {
        let mut moves = self.moves.borrow_mut();
        if moves.len() < MAX_WAITING_MOVES {
            moves.push(message);
            self.changed.notify_one();
        }
    }

    /// Adds changes of services' connections.
    pub(super) fn add_services(&self, keys: &ServiceKeys) {
        self.services.add(keys);
        self.changed.notify_one();
    }

    /// Forgets that a flow was reported to the peer: another node has reported its end, and informs the peer itself.
    pub(super) fn forget(&self, index: u32) {
        self.sent.remove(index);
    }

    /// Wakes the sender, because of a change after `since`.
    pub(super) fn notify(&self, since: Instant) {
        if self.since.get().is_none() {
            self.since.set(Some(since));
        }
        self.changed.notify_one();
    }
}

/// Sends this node's flows to a peer, from the beginning on each new connection.
pub(super) async fn run(node: Rc<Node>, at: usize) {
    let mut last_error = String::new();
    node.first_report().await;
    loop {
        let peer = &node.peers[at];
        let began = Instant::now();
        let outcome = connect_and_send(&node, peer).await;
        peer.state.is_sending.store(false, Relaxed);
        peer.state.has_all.store(false, Relaxed);
        // Does not apply to a peer that ends each connection at once.
        let is_over = matches!(outcome, Err(LinkError::Closed)) && began.elapsed() > RETRY_INTERVAL;
        if let Err(error) = outcome {
            if error.is_refusal() {
                peer.refused_at.set(Some(Instant::now()));
            }
            let error = error.to_string();
            // Repeating the same error twice a second is of no use.
            if error != last_error {
                tracing::warn!(node = peer.name, address = %peer.address, error, "Flows are not sent to another node.");
                last_error.clone_from(&error);
            }
            peer.state.send_error.store(Some(Arc::new(error)));
        }
        sleep(if is_over { RECONNECT_INTERVAL } else { RETRY_INTERVAL }).await;
    }
}

async fn connect_and_send(node: &Node, peer: &Peer) -> Result<(), LinkError> {
    let connecting = async {
        let socket = TcpStream::connect(peer.address).await?;
        prepare(&socket)?;
        let stream = node.files.connect(&peer.name, socket).await?;
        let (read, mut write) = tokio::io::split(stream);
        send_hello(&mut write, node).await?;
        let mut reader = Reader::new(read);
        let hello = reader.hello(node).await?;
        if hello.node != peer.name {
            return Err(LinkError::UnknownNode(hello.node));
        }
        Ok((reader, write))
    };
    let (reader, write) = timeout(HANDSHAKE_TIMEOUT, connecting)
        .await
        .map_err(|_| LinkError::Silent)??;
    peer.state.send_error.store(None);
    peer.state.is_sending.store(true, Relaxed);
    tracing::info!(node = peer.name, "Flows are sent to another node.");
    Sender::new(node, peer).run(reader, write).await
}

/// Unanswered batches.
#[derive(Default)]
struct Unanswered {
    /// Numbers, with the time of the oldest change of each.
    batches: VecDeque<(u32, Option<Instant>)>,
    /// Batch with the end of the full pass.
    full_end: Option<u32>,
    /// Batch with the last message about a planned move.
    planned_move: Option<u32>,
}

/// Sender of one connection.
struct Sender<'a> {
    node: &'a Node,
    peer: &'a Peer,
    /// Names that the peer knows.
    names: HashSet<u32>,
    bytes: Vec<u8>,
    next_batch: u32,
    /// Groups that this node has had since the full pass began, and the pass over services' connections; `None` after
    /// the pass.
    full_pass: Option<(Vec<String>, ServicePass)>,
    /// Groups of the last full pass that this node has had ever since.
    passed: Vec<String>,
}

impl<'a> Sender<'a> {
    fn new(node: &'a Node, peer: &'a Peer) -> Self {
        Self {
            node,
            peer,
            names: HashSet::new(),
            bytes: Vec::with_capacity(MAX_BATCH_BYTES + (64 << 10)),
            next_batch: 0,
            full_pass: None,
            passed: Vec::new(),
        }
    }

    async fn run<R, W>(mut self, mut reader: Reader<R>, mut write: W) -> Result<(), LinkError>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        self.wait_for_take_over().await;
        // Messages queued before the takeover are outdated.
        self.peer.queue.moves.borrow_mut().clear();
        self.begin_full_pass();
        let answered = Notify::new();
        let unanswered = RefCell::new(Unanswered::default());
        let (state, started) = (Arc::clone(&self.peer.state), self.node.shared.life.started);
        let reading = async {
            loop {
                reader
                    .read(|message| match message {
                        Message::Ack(number) => {
                            unanswered.borrow_mut().note_answer(number, &state);
                            unanswered.borrow().publish(&state, started);
                            answered.notify_one();
                            Ok(())
                        }
                        _ => Err(LinkError::Unexpected),
                    })
                    .await?;
            }
        };
        let writing = async {
            let mut offsets_checked = Instant::now();
            let mut cookie_key_told = None;
            loop {
                if cookie_key_told.is_none_or(|told: Instant| told.elapsed() > COOKIE_KEY_INTERVAL) {
                    cookie_key_told = Some(Instant::now());
                    if let Some(key) = cookies::own_key(self.node) {
                        key.encode(&mut self.bytes);
                    }
                }
                if offsets_checked.elapsed() > OFFSETS_INTERVAL {
                    offsets_checked = Instant::now();
                    self.find_known_offsets();
                }
                if self.has_new_groups() {
                    self.begin_full_pass();
                }
                let is_more = self.fill_batch(&mut unanswered.borrow_mut());
                unanswered.borrow().publish(&self.peer.state, started);
                write.write_all(&self.bytes).await?;
                write.flush().await?;
                self.peer.state.bytes_sent.add(self.bytes.len() as u64);
                self.bytes.clear();
                while unanswered.borrow().batches.len() >= MAX_UNANSWERED {
                    answered.notified().await;
                }
                if !is_more {
                    let _ = timeout(PING_INTERVAL, self.peer.queue.changed.notified()).await;
                }
            }
        };
        tokio::select! {
            read = reading => read,
            written = writing => written,
        }
    }

    /// Waits until the shadows of new groups are this node's own flows, because a full pass must contain all of them.
    async fn wait_for_take_over(&self) {
        let began = Instant::now();
        while self.node.flow_gc.taken_over() != self.node.shared.ha.owned() && began.elapsed() < TAKE_OVER_TIMEOUT {
            sleep(TAKE_OVER_INTERVAL).await;
        }
    }

    /// Starts sending all flows of this node.
    fn begin_full_pass(&mut self) {
        let queue = &self.peer.queue;
        queue.sent.clear();
        queue.without_offsets.borrow_mut().clear();
        queue.dirty.clear();
        let table = &self.node.cut.table;
        for index in (0..table.len()).filter(|&index| table.state(index) == state::CUT) {
            queue.dirty.add(index);
        }
        self.passed = self.own_groups();
        let services = ServicePass::begin(&queue.services, &self.passed);
        self.full_pass = Some((self.passed.clone(), services));
        Message::FullBegin.encode(&mut self.bytes);
    }

    /// Whether this node has got groups since the last full pass. The peer may have shadows from their former owner
    /// that this node does not know: a full pass ends them.
    fn has_new_groups(&mut self) -> bool {
        let own = self.own_groups();
        self.passed.retain(|group| own.contains(group));
        self.full_pass.is_none() && own.len() > self.passed.len()
    }

    /// Names of the groups whose flows all belong to this node.
    fn own_groups(&self) -> Vec<String> {
        let taken_over = self.node.flow_gc.taken_over();
        self.node.shared.ha.owned().intersection(&taken_over).cloned().collect()
    }

    /// Puts changes into a batch. Returns whether some are left.
    fn fill_batch(&mut self, unanswered: &mut Unanswered) -> bool {
        let snapshot = self.node.shared.snapshot.load_full();
        let since = self.peer.queue.since.take();
        let mut is_more = false;
        let queue = &self.peer.queue;
        for message in queue.moves.take() {
            message.encode(&mut self.bytes);
            unanswered.planned_move = Some(self.next_batch);
        }
        queue.dirty.take(|index| {
            self.put_change(index, &snapshot.floating);
            if self.bytes.len() < MAX_BATCH_BYTES {
                return ControlFlow::Continue(());
            }
            is_more = true;
            ControlFlow::Break(())
        });
        let are_known = match &mut self.full_pass {
            Some((_, pass)) => pass.advance(self.node, &queue.services),
            None => true,
        };
        let state = &self.peer.state;
        is_more |= queue.services.put(self.node, state, &mut self.bytes, MAX_BATCH_BYTES);
        if !is_more
            && are_known
            && let Some((mut groups, pass)) = self.full_pass.take()
        {
            let now = self.own_groups();
            groups.retain(|group| now.contains(group));
            pass.end(&groups, &mut self.bytes);
            Message::FullEnd(groups).encode(&mut self.bytes);
            unanswered.full_end = Some(self.next_batch);
        }
        if is_more {
            queue.since.set(since);
        }
        Message::Batch(self.next_batch).encode(&mut self.bytes);
        unanswered.batches.push_back((self.next_batch, since));
        self.next_batch = self.next_batch.wrapping_add(1);
        is_more
    }

    /// Puts the current state of an entry into the batch.
    fn put_change(&mut self, index: u32, floating: &FloatingSources) {
        let flow = self.node.cut.table.read(index);
        let queue = &self.peer.queue;
        if !self.is_replicated(&flow, floating) {
            // A flow left to another node has not ended: that node reports its end. An unreplicated flow that this node
            // has is a new flow in the entry of an ended one.
            let is_others = !self.node.shared.ha.has(floating, from_words(flow.vip));
            let is_left = flow.state == state::SHADOW || flow.state == state::CUT && !flow.ended() && is_others;
            if queue.sent.remove(index) && !is_left {
                Message::End(index).encode(&mut self.bytes);
                self.peer.state.ends_sent.inc();
            }
            return;
        }
        for number in [flow.host, flow.route, u32::from(flow.listener)] {
            if number != 0
                && self.names.insert(number)
                && let Some(parts) = self.node.cut.names.parts(number)
            {
                Message::Name(Name { number, parts }).encode(&mut self.bytes);
            }
        }
        let record = FlowRecord::of(index, &flow, Node::record_clock());
        Message::Flow(Box::new(record)).encode(&mut self.bytes);
        if !has_offsets(&flow) {
            queue.without_offsets.borrow_mut().insert(index);
        }
        queue.sent.add(index);
        self.peer.state.flows_sent.inc();
    }

    /// Whether another node could carry a flow: the kernel carries it here, and all of its addresses move.
    fn is_replicated(&self, flow: &CutFlow, floating: &FloatingSources) -> bool {
        flow.state == state::CUT
            && flow.handoff_state == SOCKETS_CLOSED
            && !flow.ended()
            && floating.moves(from_words(flow.local))
            && self.node.shared.ha.has(floating, from_words(flow.vip))
    }

    /// Sends flows again whose timestamp offsets are now known.
    fn find_known_offsets(&self) {
        let queue = &self.peer.queue;
        queue.without_offsets.borrow_mut().retain(|&index| {
            let is_known = has_offsets(&self.node.cut.table.read(index));
            if is_known {
                queue.dirty.add(index);
            }
            !is_known
        });
    }
}

/// Whether the timestamp offsets of a flow are final.
const fn has_offsets(flow: &CutFlow) -> bool {
    flow.dirs[0].flags & TS_DELTA_KNOWN != 0 && flow.dirs[1].flags & TS_DELTA_UNKNOWN == 0
}

impl Unanswered {
    /// Handles an answer: the peer has applied everything up to this batch.
    fn note_answer(&mut self, number: u32, state: &PeerState) {
        let is_answered = |batch: u32| number.wrapping_sub(batch) <= u32::MAX / 2;
        while let Some(&(batch, since)) = self.batches.front()
            && is_answered(batch)
        {
            if let Some(since) = since {
                state.lag_seconds.observe(since.elapsed());
            }
            self.batches.pop_front();
        }
        if self.full_end.take_if(|batch| is_answered(*batch)).is_some() {
            state.has_all.store(true, Relaxed);
        }
        if self.planned_move.take_if(|batch| is_answered(*batch)).is_some() {
            state.knows_hand_over.store(true, Relaxed);
        }
    }

    /// Publishes since when the peer is behind.
    fn publish(&self, state: &PeerState, started: Instant) {
        let oldest = self.batches.iter().find_map(|(_, since)| *since);
        let micros = oldest.map_or(0, |since| {
            since.saturating_duration_since(started).as_micros().max(1) as u64
        });
        state.unconfirmed_since_micros.store(micros, Relaxed);
    }
}
