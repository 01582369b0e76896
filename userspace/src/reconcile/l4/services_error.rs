//! Reasons why services and the shield do not work as configured.

use std::io;

use signalbox_common::l4::abi::{MAX_HOSTS, MAX_SERVICES, MAX_TABLES};

/// Reason why layer-4 services do not work as configured.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServicesError {
    #[error("writing {what} failed")]
    Map {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("there are more than {MAX_HOSTS} hosts of services")]
    TooManyHosts,
    #[error("there are more than {MAX_TABLES} tables: one for each cluster and family that services use")]
    TooManyTables,
    #[error(
        "more than {MAX_SERVICES} names of services have been used since the machine started: `signalbox detach`, while \
         signalbox does not run, forgets them"
    )]
    TooManyNames,
    #[error("the shield's maps have no room for so many prefixes or sources yet")]
    NoRoom,
    #[error("more listeners and services are guarded than the shield has room for")]
    TooManyGuards,
    #[error("asking the kernel for {what} failed")]
    Netlink {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}
