//! Division of the process's descriptors among connections, pipes and the admin API.

use std::sync::atomic::Ordering::Relaxed;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use signalbox_core::limits::descriptors::{connection_limit, pipe_limit};

use crate::datapath::pipe;

/// Raises the descriptor limit as far as allowed, and divides it. Returns the maximum number of connections.
pub(super) fn connection_budget(admin_connections: u32) -> u32 {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    pipe::MAX_PIPES.store(usize::try_from(pipe_limit(limit)).unwrap_or(usize::MAX), Relaxed);
    connection_limit(limit, admin_connections).max(1)
}
