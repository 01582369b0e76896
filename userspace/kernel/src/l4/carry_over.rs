//! Carries flows of services of another version of signalbox over into our maps: once before our programs are attached
//! to interfaces, and once more when the other version's are detached, for flows that began in between.

use std::io;

use signalbox_common::cut::flow::Name;
use signalbox_common::l4::abi::{Host, L4Flow};
use signalbox_common::net::Key;

use super::hooks;
use crate::map::MapFd;
use crate::pins::layout::{Conversion, Shape, Structures};
use crate::pins::other_version::OtherVersion;

/// Returns the shapes of layer 4 that another version needs to read our flows.
pub(crate) fn structures() -> Structures {
    Structures::from([
        ("Flow".to_owned(), Shape::of::<L4Flow>()),
        ("Key".to_owned(), Shape::of::<Key>()),
        ("Host".to_owned(), Shape::of::<Host>()),
        ("Name".to_owned(), Shape::of::<Name>()),
    ])
}

/// Maps that flows refer to by number: numbers are kept, so all entries go into empty maps.
pub(super) struct Targets<'a> {
    pub(super) names: &'a MapFd,
    pub(super) hosts: &'a MapFd,
    pub(super) sources: &'a MapFd,
}

/// Copies names, hosts and source addresses of another version.
pub(super) fn copy_targets(earlier: &OtherVersion, to: &Targets<'_>) -> io::Result<()> {
    let known = earlier.structures()?;
    let (names, hosts) = (
        plan_of(earlier, &known, "Name", Shape::plan::<Name>)?,
        plan_of(earlier, &known, "Host", Shape::plan::<Host>)?,
    );
    let mut copied = Ok(());
    let mut keep = |result: io::Result<()>| {
        if copied.is_ok() {
            copied = result;
        }
    };
    earlier.map("ID_NAMES")?.for_each(|number, bytes| {
        if let (Some(number), Some(name)) = (number.first_chunk::<4>(), names.read::<Name>(bytes)) {
            keep(to.names.update(&u32::from_ne_bytes(*number), &name));
        }
    })?;
    earlier.map("L4_HOSTS")?.for_each(|number, bytes| {
        if let (Some(number), Some(host)) = (number.first_chunk::<4>(), hosts.read::<Host>(bytes))
            && host != Host::default()
        {
            keep(to.hosts.update(&u32::from_ne_bytes(*number), &host));
        }
    })?;
    earlier.map("L4_NAT_SOURCES")?.for_each(|number, bytes| {
        if let (Some(number), Some(address)) = (number.first_chunk::<4>(), bytes.first_chunk::<16>())
            && *address != [0; 16]
        {
            keep(to.sources.update(&u32::from_ne_bytes(*number), address));
        }
    })?;
    copied
}

/// Copies the flows that are not there yet, and adds to others the state that they have reached since they were copied.
/// Returns how many were copied.
fn copy_flows(earlier: &OtherVersion, established: &MapFd, half_open: &MapFd) -> io::Result<usize> {
    let known = earlier.structures()?;
    let (keys, flows) = (
        plan_of(earlier, &known, "Key", Shape::plan::<Key>)?,
        plan_of(earlier, &known, "Flow", Shape::plan::<L4Flow>)?,
    );
    let mut copied = 0;
    let mut refused = None;
    for (name, to) in [("L4_CT_ESTABLISHED", established), ("L4_CT_HALF_OPEN", half_open)] {
        earlier.map(name)?.for_each(|key, bytes| {
            let (Some(key), Some(flow)) = (keys.read::<Key>(key), flows.read::<L4Flow>(bytes)) else {
                return;
            };
            let ours = established.get::<Key, L4Flow>(&key).ok().flatten();
            let ours = ours.or_else(|| half_open.get::<Key, L4Flow>(&key).ok().flatten());
            let done = match ours {
                None => {
                    copied += 1;
                    to.update(&key, &flow)
                }
                Some(known) if flow.state & !known.state != 0 => {
                    let state = known.state | flow.state;
                    to.update(&key, &L4Flow { state, ..known })
                }
                Some(_) => Ok(()),
            };
            if let Err(error) = done {
                refused = Some(error);
            }
        })?;
    }
    if let Some(error) = refused {
        tracing::error!(%error, "Some flows of services of another version could not be carried over: they end.");
    }
    Ok(copied)
}

/// Pins of services of other versions.
#[derive(Default)]
pub(super) struct OtherVersions(Vec<OtherServices>);

struct OtherServices {
    version: OtherVersion,
    /// True once the version's programs are detached and its flows are ours.
    is_retired: bool,
}

impl OtherVersions {
    pub(super) fn new(all: Vec<OtherVersion>) -> Self {
        let one = |earlier| OtherServices {
            version: earlier,
            is_retired: false,
        };
        Self(all.into_iter().map(one).collect())
    }

    /// Copies the flows of all other versions.
    pub(super) fn copy_flows(&self, established: &MapFd, half_open: &MapFd) {
        for one in self.0.iter().filter(|one| !one.is_retired) {
            if let Err(error) = copy_flows(&one.version, established, half_open) {
                let (version, dir) = (one.version.version(), one.version.dir().display());
                tracing::error!(%error, version, %dir, "Flows of services of another version cannot be read, and end.");
            }
        }
    }

    /// Detaches the other versions' programs, now that ours are attached, copies flows that have begun since the first
    /// copy, and removes the pins of each version that no process uses any more.
    pub(super) fn retire(&mut self, established: &MapFd, half_open: &MapFd) {
        for mut one in std::mem::take(&mut self.0) {
            if !one.is_retired {
                let version = one.version.version();
                if let Err(error) = retire_programs(&one.version) {
                    tracing::warn!(%error, version, "Programs of another version could not be removed.");
                }
                // An error of reading them has been logged already.
                if copy_flows(&one.version, established, half_open).is_ok() {
                    tracing::info!(version, "Flows of services of another version are carried over.");
                }
                one.is_retired = true;
            }
            if !one.version.lock() {
                self.0.push(one);
            } else if let Err(error) = one.version.remove() {
                tracing::warn!(%error, "Pinned maps and programs of another version could not be removed.");
            }
        }
    }
}

/// Detaches the other version's programs from interfaces that ours are attached to by now.
fn retire_programs(earlier: &OtherVersion) -> io::Result<()> {
    hooks::remove_filters_of_other_versions();
    earlier.remove_links()
}

fn plan_of(
    earlier: &OtherVersion,
    known: &Structures,
    name: &str,
    plan: fn(&Shape) -> io::Result<Conversion>,
) -> io::Result<Conversion> {
    let missing = || io::Error::other(format!("{} does not describe {name}", earlier.version()));
    plan(known.get(name).ok_or_else(missing)?)
}
