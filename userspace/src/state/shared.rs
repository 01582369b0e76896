//! Parts of the state that all threads share, each for those who write and read it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use signalbox_core::limits::stats::Histogram;
use signalbox_tls::store::SharedCertificates;

use crate::kernel::peek::{ChosenHosts, CookieKeys};

use super::Reloads;
use super::apply_waiting::ApplyWaiting;
use super::filter_verdicts::FilterVerdicts;
use super::shield::{DeniedSources, ShieldCover};

/// The process from its start to its end.
pub struct ProcessLife {
    pub started: Instant,
    pub stopping: AtomicBool,
    /// Whether another process is taking over. Programs at interfaces may be its own, so none is attached again.
    pub is_being_replaced: AtomicBool,
}

impl ProcessLife {
    pub(super) fn begun_now() -> Self {
        Self {
            started: Instant::now(),
            stopping: AtomicBool::new(false),
            is_being_replaced: AtomicBool::new(false),
        }
    }
}

/// Certificates on disk.
#[derive(Default)]
pub struct TlsFiles {
    /// Active certificates.
    pub certificates: SharedCertificates,
    /// Current errors in certificate files.
    pub certificate_errors: ArcSwap<Vec<String>>,
}

/// Findings about this machine's kernel. The reconciling threads write them.
pub struct KernelView {
    /// Sources that the shield denies at listeners.
    pub denied_sources: ArcSwap<DeniedSources>,
    /// Interfaces on which the shield is active.
    pub shield_cover: ArcSwap<ShieldCover>,
    /// Verdicts on the rules of packet filters.
    pub filter_verdicts: ArcSwap<FilterVerdicts>,
    /// Whether connection tracking may see connections that are passed up: it needs an entry for each.
    pub tracks_connections: AtomicBool,
    /// Foreign programs that see packets before ours, in words.
    pub foreign_programs: ArcSwap<Vec<String>>,
    /// Hosts that the kernel peek has chosen for connections that it has passed up; unset without it.
    pub chosen_hosts: OnceLock<Arc<ChosenHosts>>,
    /// Keys of the kernel peek's cookies; unset without it.
    pub cookie_keys: OnceLock<Arc<CookieKeys>>,
}

impl Default for KernelView {
    fn default() -> Self {
        Self {
            denied_sources: ArcSwap::default(),
            shield_cover: ArcSwap::default(),
            filter_verdicts: ArcSwap::default(),
            tracks_connections: AtomicBool::new(true),
            foreign_programs: ArcSwap::default(),
            chosen_hosts: OnceLock::new(),
            cookie_keys: OnceLock::new(),
        }
    }
}

/// Changes of the configuration, and the time that they took.
#[derive(Default)]
pub struct AppliedChanges {
    pub reloads: Reloads,
    /// Histogram of the time to apply a new model. The swap of the snapshot is its last step.
    pub seconds: Histogram,
    /// Time since when reports of sources wait to be applied.
    pub waiting: ApplyWaiting,
}
