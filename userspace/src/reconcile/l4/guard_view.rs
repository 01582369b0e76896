//! Guards of the shield for the API and metrics, and predictions for a client.

use std::collections::HashMap;
use std::net::IpAddr;

use signalbox_api::by_label;
use signalbox_api::shield::{GuardKind, GuardView, ShieldVerdict, TokensLeft};
use signalbox_common::shield::abi::LimitKind;
use signalbox_common::shield::{ConnCountKey, Decision, Guard, Settings, rate, source};
use signalbox_core::limits::prefixes::Verdict;
use signalbox_core::model::Model;
use signalbox_core::model::shield::ShieldPolicy;

use super::Services;
use super::apply::Tables;
use super::guards::{Guards, policies};
use super::host_numbers::{ServiceId, service_id};
use super::lists::PrefixSet as Prefixes;
use crate::kernel::address::to_words;
use crate::kernel::cut::table::clock;
use crate::kernel::l4::L4Kernel as Kernel;
use crate::state::Snapshot;

/// Interval at which samples are read.
const SAMPLE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(100);

/// Guards as written to the kernel, for readers.
#[derive(Default)]
pub(super) struct GuardsView {
    names: HashMap<u32, (GuardKind, String)>,
    numbers: HashMap<(GuardKind, String), u32>,
    guards: HashMap<u32, Guard>,
    settings: Settings,
    shared: Prefixes,
    own: HashMap<u32, Prefixes>,
}

impl GuardsView {
    pub(super) fn new(guards: &Guards, model: &Model) -> Self {
        let named = guards.named(model);
        let (common, own) = guards.sources();
        Self {
            names: named
                .iter()
                .map(|(kind, name, number)| (*number, (*kind, name.clone())))
                .collect(),
            guards: named
                .iter()
                .filter_map(|(_, _, at)| Some((*at, guards.guard(*at)?)))
                .collect(),
            numbers: named
                .into_iter()
                .map(|(kind, name, number)| ((kind, name), number))
                .collect(),
            settings: guards.settings(),
            shared: common,
            own,
        }
    }
}

impl GuardsView {
    /// Returns whether the guard of a listener or service has been written.
    pub(super) fn has(&self, kind: GuardKind, name: &str) -> bool {
        let number = self.numbers.get(&(kind, name.to_owned()));
        number.is_some_and(|number| self.guards.contains_key(number))
    }
}

/// Guards that limit concurrent connections: for services by number, for listeners by name.
#[derive(Clone, Default)]
pub(super) struct LimitedGuards {
    pub(super) services: HashMap<u16, (u32, Guard)>,
    pub(super) listeners: HashMap<u32, String>,
}

pub(super) fn limited_guards(guards: &Guards, tables: &Tables, snapshot: &Snapshot) -> LimitedGuards {
    let mut limited = LimitedGuards::default();
    let services = snapshot.model.services.iter();
    let ids: HashMap<&str, ServiceId> = services.map(|service| (&*service.name, service_id(service))).collect();
    for (kind, name, number) in guards.named(&snapshot.model) {
        let Some(guard) = guards.guard(number).filter(|guard| guard.concurrent != 0) else {
            continue;
        };
        match kind {
            GuardKind::Service => {
                let id = ids.get(name.as_str());
                if let Some(service) = id.and_then(|id| tables.service_numbers().get(id)) {
                    limited.services.insert(*service, (number, guard));
                }
            }
            GuardKind::Listener => drop(limited.listeners.insert(number, name)),
        }
    }
    limited
}

impl Services {
    /// Returns all guards with their counts.
    #[must_use]
    pub fn guards(&self) -> Vec<GuardView> {
        let (snapshot, picture) = (self.shared.snapshot.load_full(), self.view.load());
        let view = |(kind, name, policy): (GuardKind, &String, &ShieldPolicy)| {
            let number = picture.guards.numbers.get(&(kind, name.clone())).copied();
            let judged = match (&picture.kernel, number) {
                (Some(kernel), Some(number)) => kernel.shield.decisions(number),
                _ => [0; 8],
            };
            let decisions = Decision::ALL.iter().zip(judged);
            GuardView {
                kind,
                name: name.clone(),
                malformed: if policy.malformed { "drop" } else { "pass" }.into(),
                syn_cookies: if policy.syn_cookies && kind == GuardKind::Listener {
                    "auto"
                } else {
                    "off"
                }
                .into(),
                limits: policy.limits,
                prefixes: number
                    .and_then(|number| picture.guards.own.get(&number))
                    .map_or(0, Prefixes::len),
                decisions: by_label(decisions.map(|(judged, count)| (judged.reason().label(), count))),
            }
        };
        policies(&snapshot.model).map(view).collect()
    }

    /// Returns the number of prefixes that apply to all listeners and services.
    #[must_use]
    pub fn shared_prefixes(&self) -> usize {
        self.view.load().guards.shared.len()
    }

    /// Predicts how the shield treats a client's next connection.
    #[must_use]
    pub fn judge(&self, kind: GuardKind, name: &str, client: IpAddr) -> ShieldVerdict {
        let picture = self.view.load();
        let guarded = &picture.guards;
        let passes = |reason: &str| ShieldVerdict {
            verdict: "passes".into(),
            reason: reason.to_owned(),
            ..ShieldVerdict::default()
        };
        let Some(number) = guarded.numbers.get(&(kind, name.to_owned())) else {
            return passes("it is not shielded");
        };
        let client = client.to_canonical();
        let common = guarded.shared.longest_match(client);
        let own = guarded.own.get(number).and_then(|own| own.longest_match(client));
        for (whose, found) in [("that hold for all", common), ("of its own", own)] {
            if let Some((net, Verdict::Deny)) = found {
                return ShieldVerdict {
                    verdict: "denied".into(),
                    reason: format!("the prefix {net} of those {whose} denies it"),
                    prefix: Some(net.to_string()),
                    ..ShieldVerdict::default()
                };
            }
        }
        let (Some(guard), Some(kernel)) = (guarded.guards.get(number), &picture.kernel) else {
            return passes("the shield is not in the kernel yet");
        };
        let masked = source::mask_source(&to_words(client), guard);
        let key = ConnCountKey {
            source: masked,
            guard: *number,
        };
        let has = match kind {
            GuardKind::Service => kernel.shield.conn_count(&key).unwrap_or(0),
            GuardKind::Listener => self.shared.connections_of(name, client),
        };
        let tag = source::tag(guarded.settings.seed, &masked, *number);
        let place = source::bucket_index(tag, guarded.settings.buckets);
        let bucket = kernel.shield.bucket(place).ok().flatten().unwrap_or_default();
        let cell = bucket.cells.iter().find(|cell| cell.tag == tag);
        let left = |what| rate::tokens_left(cell, guard, what, clock());
        let tokens = TokensLeft {
            connections: left(LimitKind::Connections),
            packets: left(LimitKind::Packets),
            bytes: left(LimitKind::Bytes),
        };
        let limit = [
            (LimitKind::Connections, "connections"),
            (LimitKind::Packets, "packets"),
            (LimitKind::Bytes, "bytes"),
        ]
        .into_iter()
        .find(|(what, _)| left(*what) == Some(0));
        let (verdict, reason) = if guard.concurrent != 0 && has >= guard.concurrent {
            (
                "concurrent",
                format!("its source has {has} connections; {} are allowed", guard.concurrent),
            )
        } else if let Some((_, what)) = limit {
            (what, format!("its source has used up its rate of {what}"))
        } else {
            (
                "passes",
                "no prefix denies it, and its source has room for more".to_owned(),
            )
        };
        ShieldVerdict {
            verdict: verdict.into(),
            reason,
            prefix: None,
            concurrent: Some(has),
            left: Some(tokens),
        }
    }

    /// Makes the programs refuse sources that workers have refused, until those have fewer connections again.
    fn block_over_limit(&self, picture: &super::ServicesView) {
        self.shared.limits.over.drain(|listener, source| {
            let number = picture
                .guards
                .numbers
                .get(&(GuardKind::Listener, listener.name.clone()));
            let (Some(number), Some(kernel)) = (number, &picture.kernel) else {
                return;
            };
            if let Some(guard) = picture.guards.guards.get(number) {
                let key = ConnCountKey {
                    source: source::mask_source(&to_words(source), guard),
                    guard: *number,
                };
                // The next count removes or corrects the entry.
                let _ = kernel.shield.set_conn_count(&key, guard.concurrent);
            }
        });
    }

    /// Reads samples of dropped packets until the services end.
    pub(super) fn take_samples(&self) {
        loop {
            std::thread::sleep(SAMPLE_INTERVAL);
            if self.wakeups.is_closed() {
                return;
            }
            let picture = self.view.load_full();
            self.block_over_limit(&picture);
            let Some(kernel) = picture.kernel.as_ref().filter(|_| !picture.guards.names.is_empty()) else {
                continue;
            };
            let taken = kernel
                .shield
                .for_each_sample(|dropped| self.drops.add(super::drops::view(&dropped, &picture.guards.names)));
            if let Err(error) = taken {
                tracing::debug!(%error, "Samples of dropped packets could not be taken.");
            }
        }
    }
}

/// Writes how many connections each limited source has. Between two such counts the programs estimate.
pub(super) fn write_conn_counts(
    kernel: &Kernel,
    limited: &LimitedGuards,
    of_services: &HashMap<ConnCountKey, u32>,
    of_listener: impl Fn(&str, [u32; 4]) -> u32,
) -> std::io::Result<()> {
    if limited.services.is_empty() && limited.listeners.is_empty() {
        return Ok(());
    }
    let mut unknown = of_services.clone();
    for (key, known) in kernel.shield.conn_counts()? {
        let count = match limited.listeners.get(&key.guard) {
            Some(name) => of_listener(name, key.source),
            None => unknown.remove(&key).unwrap_or(0),
        };
        if count != known {
            kernel.shield.set_conn_count(&key, count)?;
        }
    }
    // If there is no room for all sources, those with the most connections get an entry.
    let mut unknown: Vec<_> = unknown.into_iter().collect();
    unknown.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (key, count) in unknown {
        if kernel.shield.set_conn_count(&key, count).is_err() {
            break;
        }
    }
    Ok(())
}
