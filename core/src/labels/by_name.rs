//! Labels of names: those of the file's routes, and of the objects that sources know.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Labels;
use crate::discovery::Discovered;
use crate::hostname::HostnamePattern;
use crate::model::Model;

/// Labels of every claim to a name: of the file's route, and of the objects of every cluster that accepts discovery.
///
/// A route of the file that leaves its clusters to be discovered is no claim: it counts only if it has labels.
#[must_use]
pub fn by_name<'a>(
    file: &'a Model,
    discovered: &'a Discovered,
) -> HashMap<&'a HostnamePattern, Vec<&'a Labels>, FixedState> {
    let mut names: HashMap<_, Vec<_>, _> = HashMap::with_hasher(FixedState::default());
    for route in &file.routes {
        if !route.is_discovered() || !route.labels.is_empty() {
            names.entry(&route.hostname).or_default().push(&route.labels);
        }
    }
    let learned = discovered
        .values()
        .flatten()
        .filter(|(cluster, _)| file.accepts_discovery(cluster));
    for claim in learned.flat_map(|(_, learned)| &learned.routes) {
        names.entry(&claim.hostname).or_default().extend(claim.labels.iter());
    }
    names
}
