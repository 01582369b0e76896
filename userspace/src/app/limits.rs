//! Division of the process's descriptors among connections, pipes and the admin API.

use std::sync::atomic::Ordering::Relaxed;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::admin;
use crate::datapath::pipe;

/// Descriptors not used for connections: our own sockets, maps, pipes, health checks.
const RESERVED_DESCRIPTORS: u64 = 256;

/// Raises the descriptor limit as far as allowed, and divides it. Returns the maximum number of connections.
pub(super) fn connection_budget(admin_connections: u32) -> u32 {
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    pipe::MAX_PIPES.store(usize::try_from(pipe_limit(limit)).unwrap_or(usize::MAX), Relaxed);
    connection_limit(limit, admin_connections).max(1)
}

/// Returns the maximum number of pipes for `limit` descriptors.
const fn pipe_limit(limit: u64) -> u64 {
    limit / 64
}

/// Returns the maximum number of connections for `limit` descriptors: two for each connection, two for each pipe, and
/// one for each connection of the admin API, which therefore takes none from traffic.
#[must_use]
pub fn connection_limit(limit: u64, admin_connections: u32) -> u32 {
    let admin = u64::from(admin_connections) + u64::from(admin::MAX_UNIX_CONNECTIONS);
    let other = RESERVED_DESCRIPTORS + admin + 2 * pipe_limit(limit);
    u32::try_from(limit.saturating_sub(other) / 2).unwrap_or(u32::MAX)
}
