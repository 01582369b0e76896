//! Reports whether the configured shield and services are active.

use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use signalbox_common::parts;

use super::guards::policies;
use super::host_numbers::service_id;
use super::{Services, ServicesView};

impl Services {
    /// Returns why the configured shield is not active; `None` if it is, or if none is configured.
    #[must_use]
    pub fn shield_problem(&self) -> Option<String> {
        let (snapshot, picture) = (self.shared.snapshot.load_full(), self.view.load());
        let mut wanted = policies(&snapshot.model).peekable();
        wanted.peek()?;
        let unwritten = |(kind, name, _): (_, &String, _)| {
            let is_missing = !picture.guards.has(kind, name);
            is_missing.then(|| format!("the guard of {name} is not in the kernel yet"))
        };
        picture
            .part_problem(parts::SHIELD)
            .or_else(|| picture.shield_error.clone())
            .or_else(|| wanted.find_map(unwritten))
    }

    /// Returns why the configured services are not active; `None` if they are, or if none is configured.
    #[must_use]
    pub fn services_problem(&self) -> Option<String> {
        let (snapshot, picture) = (self.shared.snapshot.load_full(), self.view.load());
        let services = &snapshot.model.services;
        services.first()?;
        let is_unknown =
            |service: &&signalbox_core::model::Service| !picture.services.contains_key(&service_id(service));
        let unwritten = || {
            let service = services.iter().find(is_unknown)?;
            Some(format!("service {} is not in the kernel yet", service.name))
        };
        picture
            .part_problem(parts::SERVICES)
            .or_else(|| picture.services_error.clone())
            .or_else(unwritten)
    }

    /// Waits until maps and hooks match the current snapshot, or until that has failed. False if neither happens within
    /// `limit`.
    pub fn wait_until_settled(&self, limit: Duration) -> bool {
        self.has_changed.store(true, Release);
        self.looks_now.store(true, Release);
        self.wakeups.wake_and_wait(limit)
    }
}

impl ServicesView {
    /// Returns why packets do not pass through this part of the programs.
    fn part_problem(&self, part: u32) -> Option<String> {
        let Some(kernel) = &self.kernel else {
            let loading = || "the programs are being loaded".to_owned();
            return Some(self.load_error.clone().unwrap_or_else(loading));
        };
        if kernel.missing & part != 0 {
            return Some("the kernel refuses this part of the programs: `signalbox doctor` says why".to_owned());
        }
        // Services work with one interface that has a program. The shield needs all, or clients can bypass it.
        if let Some(why) = self.unattached.first()
            && (part == parts::SHIELD || self.hooks.is_empty())
        {
            return Some(why.clone());
        }
        let nowhere =
            "no program is on an interface yet: none that routes go by is an Ethernet one, or it is too early";
        self.hooks.is_empty().then(|| nowhere.to_owned())
    }
}
