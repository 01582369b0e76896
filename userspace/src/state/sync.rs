//! Counters and states of the replication of flows to other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use signalbox_core::stats::{Counter, Histogram, LabelledCounters};
use tokio::sync::{mpsc, oneshot};

use super::service_flows::ServiceFlows;

/// Reason why a flow to a virtual address cannot be carried by another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unprotected {
    /// The flow's connection to its host comes from an address that does not move.
    NoFloatingSource,
    /// The flow is not cut: this process carries it.
    NotCut,
}

impl Unprotected {
    /// Metric labels, in the order of the variants.
    pub const LABELS: [&'static str; 2] = ["no_floating_source", "not_cut"];
}

/// Reason why a flow of another node is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The flow table has no room for more shadows.
    NoRoom,
    /// The flow's addresses are none of those that move, as this node is configured.
    OtherAddresses,
    /// Another flow that this node carries has the same addresses and ports.
    Occupied,
    /// No service of this node's configuration has the flow's target and host.
    OtherService,
}

impl Rejection {
    /// Metric labels, in the order of the variants.
    pub const LABELS: [&'static str; 4] = ["no_room", "other_addresses", "occupied", "other_service"];
}

/// Request that this node prepare to give a group up by plan: it goes on to serve the group's connections for a while.
#[derive(Debug)]
pub struct HandOverRequest {
    pub group: String,
    /// Time for connections to end by themselves.
    pub period: Duration,
    /// Names of the nodes that send their packets here, or the reason why there are none.
    pub reply: oneshot::Sender<Result<Vec<String>, String>>,
}

/// Request that the nodes that have groups hand them over, for this node is about to take them.
#[derive(Debug)]
pub struct ReclaimRequest {
    pub groups: Vec<String>,
    /// Names of the nodes that have answered.
    pub reply: oneshot::Sender<Vec<String>>,
}

/// Request about groups that move by plan.
#[derive(Debug)]
pub enum PlannedMove {
    HandOver(HandOverRequest),
    Reclaim(ReclaimRequest),
}

/// State of replication that all threads share.
#[derive(Default)]
pub struct SyncState {
    /// The other nodes; empty where there is no replication.
    pub peers: ArcSwap<Vec<Arc<PeerState>>>,
    /// Flows of other nodes that this one has taken over.
    pub promoted: Counter,
    /// Connections of layer-4 services to tell other nodes of.
    pub services: ServiceFlows,
    /// Flows to virtual addresses that no other node can carry, by reason.
    pub unprotected: [Counter; Unprotected::LABELS.len()],
    /// Connections of other nodes that were refused, by reason.
    pub refused: LabelledCounters,
    /// Where moves are prepared; `None` where there is no replication.
    pub planned_moves: ArcSwapOption<mpsc::UnboundedSender<PlannedMove>>,
    /// Addresses that have left by plan and whose connections drain here, and those that have come and whose former
    /// owners drain.
    pub addresses_given_up: AtomicU64,
    pub addresses_chained: AtomicU64,
    /// Connections of clients at addresses that have left.
    pub draining_connections: AtomicU64,
}

/// State of replication with one other node.
#[derive(Default)]
pub struct PeerState {
    pub node: String,
    /// Whether this node's flows are being sent.
    pub is_sending: AtomicBool,
    /// Whether the other node has all flows that there were when sending began.
    pub has_all: AtomicBool,
    /// Time of the oldest change that the other node has not confirmed, in µs since the process' start; 0: there is none.
    pub unconfirmed_since_micros: AtomicU64,
    /// Whether the other node knows of the hand-over that it was told of last.
    pub knows_hand_over: AtomicBool,
    /// Whether the other node has answered what was reclaimed last.
    pub has_answered_reclaim: AtomicBool,
    /// Reason why they are not being sent, as of the last attempt.
    pub send_error: ArcSwapOption<String>,
    /// Whether the other node's flows are being received, and all of them have been.
    pub is_receiving: AtomicBool,
    pub is_complete: AtomicBool,
    /// Flows and ends that were sent.
    pub flows_sent: Counter,
    pub ends_sent: Counter,
    pub bytes_sent: Counter,
    /// Flows of the other node that are held as shadows.
    pub shadows: AtomicU64,
    /// Connections of layer-4 services of the other node that are held.
    pub service_flows: AtomicU64,
    /// Flows of the other node that are not kept, by reason.
    pub rejected: [Counter; Rejection::LABELS.len()],
    /// Histogram of the time from the hand-off of a flow to the kernel until the other node has it.
    pub lag_seconds: Histogram,
}
