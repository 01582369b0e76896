//! Name by which this balancer chooses its subset of a cluster's hosts.

/// Returns the name of the machine.
pub(super) fn machine_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
