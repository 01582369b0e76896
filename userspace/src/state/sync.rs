//! Counters and states of the replication of flows to other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use signalbox_core::limits::stats::{Counter, Histogram, LabelledCounters};
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

/// Reason why another node's flow is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The flow table has no room for more shadows.
    NoRoom,
    /// The flow's addresses are not among this node's moving addresses.
    OtherAddresses,
    /// Another flow carried by this node has the same addresses and ports.
    Occupied,
    /// No service of this node's configuration has the flow's target and host.
    OtherService,
}

impl Rejection {
    /// Metric labels, in the order of the variants.
    pub const LABELS: [&'static str; 4] = ["no_room", "other_addresses", "occupied", "other_service"];
}

/// Request that this node prepares a planned move of a group, whose connections it then continues to serve for a while.
#[derive(Debug)]
pub struct HandOverRequest {
    pub group: String,
    /// Time for connections to end normally.
    pub period: Duration,
    /// Names of the nodes that will send their packets here, or the reason why there are none.
    pub reply: oneshot::Sender<Result<Vec<String>, String>>,
}

/// Request that the nodes with the groups hand them over, because this node is about to take them.
#[derive(Debug)]
pub struct ReclaimRequest {
    pub groups: Vec<String>,
    /// Names of the nodes that have answered.
    pub reply: oneshot::Sender<Vec<String>>,
}

/// Request about a planned move of groups.
#[derive(Debug)]
pub enum PlannedMove {
    HandOver(HandOverRequest),
    Reclaim(ReclaimRequest),
}

/// State of replication that all threads share.
#[derive(Default)]
pub struct SyncState {
    /// The other nodes; empty without replication.
    pub peers: ArcSwap<Vec<Arc<PeerState>>>,
    /// Flows of other nodes that this node has taken over.
    pub promoted: Counter,
    /// Connections of layer-4 services to report to other nodes.
    pub services: ServiceFlows,
    /// Flows to virtual addresses that no other node can carry, by reason.
    pub unprotected: [Counter; Unprotected::LABELS.len()],
    /// Connections of other nodes that were refused, by reason.
    pub refused: LabelledCounters,
    /// Channel to prepare moves; `None` without replication.
    pub planned_moves: ArcSwapOption<mpsc::UnboundedSender<PlannedMove>>,
    /// Addresses that have left in a planned move and whose connections drain here, and addresses that have arrived and
    /// whose former owners drain.
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
    /// Whether the other node has all flows that existed when sending began.
    pub has_all: AtomicBool,
    /// Time of the oldest change that the other node has not confirmed, in µs since the process' start; 0: none.
    pub unconfirmed_since_micros: AtomicU64,
    /// Whether the other node knows of the last hand-over reported to it.
    pub knows_hand_over: AtomicBool,
    /// Whether the other node has answered the last reclaim.
    pub has_answered_reclaim: AtomicBool,
    /// Reason why the flows are not being sent, from the last attempt.
    pub send_error: ArcSwapOption<String>,
    /// Whether the other node's flows are being received, and whether all of them have been.
    pub is_receiving: AtomicBool,
    pub is_complete: AtomicBool,
    /// Whether the other node's SYN cookies have the same key as those of this node.
    pub has_same_cookies: AtomicBool,
    /// Number of flows and ends sent.
    pub flows_sent: Counter,
    pub ends_sent: Counter,
    pub bytes_sent: Counter,
    /// Flows of the other node that are stored as shadows.
    pub shadows: AtomicU64,
    /// Stored connections of the other node's layer-4 services.
    pub service_flows: AtomicU64,
    /// Flows of the other node that are not stored, by reason.
    pub rejected: [Counter; Rejection::LABELS.len()],
    /// Histogram of the time from a flow's hand-off to the kernel until the other node has it.
    pub lag_seconds: Histogram,
}
