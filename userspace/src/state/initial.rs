//! The state that all threads share, as it is at the start.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use signalbox_common::peek::abi::COUNT_OF_ALL;
use signalbox_core::availability::ha::floating::{FloatingSources, NodeShare};
use signalbox_core::limits::stats::Counter;
use signalbox_core::model::Model;
use signalbox_core::routing::view::{Eligibility, RoutingView};

use super::connection_ids::ConnectionIds;
use super::counts::LimitCounts;
use super::route_stats::labels::RouteLabels;
use super::shared::{AppliedChanges, KernelView, ProcessLife, TlsFiles};
use super::sync::SyncState;
use super::{AdminStats, Binds, IdleTimeouts, Shared, Snapshot, Totals};

impl Shared {
    /// Returns the state before a configuration is active, with counts in memory of this process alone.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        Self::with_counts(model, LimitCounts::default())
    }

    /// Returns the state before a configuration is active.
    #[must_use]
    pub fn with_counts(model: &Model, counts: LimitCounts) -> Self {
        let empty = Model {
            listeners: Vec::new(),
            clusters: Vec::new(),
            routes: Vec::new(),
            services: Vec::new(),
            routing_events: None,
            ..model.clone()
        };
        let snapshot = Snapshot {
            view: RoutingView::new(
                &empty,
                |_, _| Eligibility {
                    usable: false,
                    ejected: false,
                    rotated_out: false,
                },
                |_| false,
            ),
            subsets: Arc::default(),
            binds: Binds::new(&empty),
            idle_timeouts: IdleTimeouts::new(&empty),
            floating: FloatingSources::default(),
            file: Arc::new(empty.clone()),
            model: Arc::new(empty),
            discovered: Arc::default(),
            weights: Arc::default(),
            testers: Arc::default(),
            shield: Arc::default(),
            exposure: Arc::default(),
            rotation: Arc::default(),
            listeners: Vec::new(),
            clusters: Vec::new(),
            hosts: Vec::new(),
            routes: Vec::new(),
            draining: Vec::new(),
            path_tickets: HashMap::default(),
            tls: Arc::default(),
            http2: Arc::default(),
        };
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        Self {
            snapshot: ArcSwap::from_pointee(snapshot),
            snapshot_follower: std::sync::OnceLock::new(),
            seed,
            life: ProcessLife::begun_now(),
            totals: Totals {
                current: counts.words.gauge_of(COUNT_OF_ALL),
                ..Totals::default()
            },
            any_ticket: Counter::default(),
            request_ids: Counter::default(),
            connection_ids: ConnectionIds::random(),
            limits: counts,
            error_pages: ArcSwap::default(),
            log: Arc::default(),
            route_labels: RouteLabels::default(),
            series: super::series::Series::default(),
            tls: TlsFiles::default(),
            kernel: KernelView::default(),
            applied: AppliedChanges::default(),
            sources: Mutex::default(),
            changes: tokio::sync::broadcast::Sender::new(1024),
            admin: AdminStats::default(),
            ha: Arc::default(),
            sync: SyncState::default(),
            node: NodeShare::of(model.ha.as_ref(), &crate::sys::node_name()),
        }
    }
}
