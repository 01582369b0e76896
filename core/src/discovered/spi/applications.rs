//! The fold: events in, applications out.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::application::{AppKey, Application};
use super::event::{AppChange, RoutingEvent};

/// All applications, by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applications(BTreeMap<AppKey, Application>);

impl Applications {
    /// Replaces the record of an application.
    pub fn restore(&mut self, application: Application) {
        self.0.insert(application.key.clone(), application);
    }

    /// Application with this key, if any is known.
    #[must_use]
    pub fn get(&self, key: &AppKey) -> Option<&Application> {
        self.0.get(key)
    }

    /// All applications, in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Application> {
        self.0.values()
    }

    /// Computes what events would change, without changing anything: each application that differs after all events,
    /// `None` where it is gone.
    #[must_use]
    pub fn changes_after(&self, events: &[RoutingEvent]) -> BTreeMap<AppKey, Option<Application>> {
        let mut touched: BTreeMap<AppKey, Option<Application>> = BTreeMap::new();
        for event in events {
            let application = match touched.entry(event.app.clone()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.0.get(&event.app).cloned()),
            };
            apply_change(&event.app, application, &event.change);
        }
        touched.retain(|key, application| self.0.get(key) != application.as_ref());
        touched
    }

    /// Applies changes that [`Self::changes_after`] has computed.
    pub fn commit(&mut self, changed: BTreeMap<AppKey, Option<Application>>) {
        for (key, application) in changed {
            match application {
                Some(application) => self.0.insert(key, application),
                None => self.0.remove(&key),
            };
        }
    }

    /// Computes and applies changes at once; returns whether anything changed.
    pub fn apply(&mut self, events: &[RoutingEvent]) -> bool {
        let changed = self.changes_after(events);
        let any = !changed.is_empty();
        self.commit(changed);
        any
    }
}

fn apply_change(key: &AppKey, known: &mut Option<Application>, change: &AppChange) {
    match change {
        AppChange::Delete => *known = None,
        AppChange::Duplicate => {}
        AppChange::Start(_)
        | AppChange::RotateIn(_)
        | AppChange::RemoveEndpoint { .. }
        | AppChange::RemoveAlias(_)
        | AppChange::RemoveCertificate(_)
        | AppChange::RemoveGeography { .. } => {
            if let Some(application) = known {
                remove(application, change);
                if application.is_disposable() {
                    *known = None;
                }
            }
        }
        _ => add(known.get_or_insert_with(|| Application::new(key.clone())), change),
    }
}

/// Sets the state of a gear or of the whole application; the last event counts, whichever it is about.
fn set_stopped(application: &mut Application, gear: Option<&String>, stopped: bool) {
    match gear {
        None => {
            application.stopped = stopped;
            application.stopped_gears.clear();
        }
        Some(gear) if application.stopped == stopped => drop(application.stopped_gears.remove(gear)),
        Some(gear) => drop(application.stopped_gears.insert(gear.clone(), stopped)),
    }
}

fn add(application: &mut Application, change: &AppChange) {
    match change {
        AppChange::Create { scalable, ha } => {
            application.announced = true;
            application.scalable = *scalable;
            application.ha = *ha;
        }
        AppChange::AddEndpoint { addr: at, endpoint } => {
            // A gear is on one node: at another IP address it has moved. At one address several of its ports may have
            // one name, which is that of their cartridge.
            if endpoint.gear.is_some() && endpoint.name.is_some() {
                let same = |other: &super::Endpoint| other.gear == endpoint.gear && other.name == endpoint.name;
                application
                    .endpoints
                    .retain(|other_at, other| other_at.ip() == at.ip() || !same(other));
            }
            application.endpoints.insert(*at, endpoint.clone());
            forget_head(application);
            if application.head.is_none() {
                application.head.clone_from(&endpoint.gear);
            }
        }
        AppChange::AddAlias(alias) => {
            application.aliases.insert(alias.clone());
        }
        AppChange::AddCertificate { alias, certificate } => {
            application.certificates.insert(alias.clone(), (**certificate).clone());
        }
        AppChange::Stop(gear) => set_stopped(application, gear.as_ref(), true),
        // Operators rotate too: the store has the active rotations, the application only those of events.
        AppChange::RotateOut { gear, reason, .. } => {
            let gear = gear.clone().unwrap_or_default();
            application.rotated_out.insert(gear, reason.clone());
        }
        AppChange::AddGeography { geography, gear } => {
            let of = application
                .geographies
                .entry(gear.clone().unwrap_or_default())
                .or_default();
            of.insert(geography.clone());
        }
        _ => {}
    }
}

/// Drops the head of an application when that gear has no endpoint left.
fn forget_head(application: &mut Application) {
    let head = application.head.take();
    application.head = head.filter(|head| application.gears().any(|gear| gear == head));
}

fn remove(application: &mut Application, change: &AppChange) {
    match change {
        AppChange::RemoveEndpoint { addr: at, gear } => {
            let there = application
                .endpoints
                .get(at)
                .and_then(|endpoint| endpoint.gear.as_ref());
            // The address may have been given to another gear since: the event is about the gear that had it.
            let another = matches!((there, gear), (Some(there), Some(gear)) if there != gear);
            if !another {
                application.endpoints.remove(at);
                forget_head(application);
            }
        }
        AppChange::Start(gear) => set_stopped(application, gear.as_ref(), false),
        AppChange::RotateIn(gear) => {
            application.rotated_out.remove(gear.as_deref().unwrap_or_default());
        }
        AppChange::RemoveGeography { geography, gear } => {
            if let Some(of) = application.geographies.get_mut(gear.as_deref().unwrap_or_default()) {
                of.remove(geography);
            }
            application.geographies.retain(|_, of| !of.is_empty());
        }
        AppChange::RemoveAlias(alias) => {
            application.aliases.remove(alias);
            application.certificates.remove(alias);
        }
        AppChange::RemoveCertificate(alias) => {
            application.certificates.remove(alias);
        }
        _ => {}
    }
}
