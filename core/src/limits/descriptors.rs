//! Division of a process's file descriptors among connections, pipes and the admin API.

/// Descriptors not used for connections: our own sockets, maps, health checks.
const RESERVED_DESCRIPTORS: u64 = 256;

/// Maximum number of connections to the admin socket. It has a separate limit, so that its owner can connect even with
/// many clients at the TCP address.
pub const MAX_ADMIN_SOCKET_CONNECTIONS: u32 = 64;

/// Capacity of a pipe in bytes. It bounds the memory for a stalled reader.
pub const PIPE_CAPACITY_BYTES: usize = 512 * 1024;

/// Returns the maximum number of pipes for `limit` descriptors.
#[must_use]
pub const fn pipe_limit(limit: u64) -> u64 {
    limit / 64
}

/// Returns the maximum number of connections for `limit` descriptors: two for each connection, two for each pipe, and
/// one for each connection of the admin API, which therefore takes none from traffic.
#[must_use]
pub fn connection_limit(limit: u64, admin_connections: u32) -> u32 {
    let admin = u64::from(admin_connections) + u64::from(MAX_ADMIN_SOCKET_CONNECTIONS);
    let other = RESERVED_DESCRIPTORS + admin + 2 * pipe_limit(limit);
    u32::try_from(limit.saturating_sub(other) / 2).unwrap_or(u32::MAX)
}
