//! A ledger that can be made to fail, or to stop in the middle.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};

use signalbox::compat::routing_spi::Ledger;

use super::activemq::LONG;

/// Records that outlive the consumer.
#[derive(Default)]
pub(crate) struct Disk {
    records: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Calls that have come, calls that must fail from now on, and the call at which to stop.
    plan: Mutex<Plan>,
    changed: Condvar,
}

#[derive(Default)]
struct Plan {
    calls: u64,
    failures: u64,
    stop: Option<Stop>,
    stopped: bool,
}

/// Moment at which the consumer must die.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    BeforeRecord,
    AfterRecord,
}

struct Stop {
    at: u64,
    moment: Moment,
}

impl Disk {
    pub(crate) fn records(&self) -> Vec<(String, Vec<u8>)> {
        let records = self.records.lock().unwrap();
        records
            .iter()
            .map(|(key, bytes)| (key.clone(), bytes.clone()))
            .collect()
    }

    pub(crate) fn calls(&self) -> u64 {
        self.plan.lock().unwrap().calls
    }

    pub(crate) fn fail(&self, times: u64) {
        self.plan.lock().unwrap().failures = times;
    }

    /// Failures still to come.
    pub(crate) fn failures(&self) -> u64 {
        self.plan.lock().unwrap().failures
    }

    /// The next call but `calls` will not return until `release`.
    pub(crate) fn stop_after(&self, calls: u64, moment: Moment) {
        let mut plan = self.plan.lock().unwrap();
        let at = plan.calls + calls;
        plan.stop = Some(Stop { at, moment });
    }

    pub(crate) fn wait_stopped(&self) {
        let plan = self.plan.lock().unwrap();
        let (plan, _) = self
            .changed
            .wait_timeout_while(plan, LONG, |plan| !plan.stopped)
            .unwrap();
        assert!(plan.stopped, "no further event came");
    }

    pub(crate) fn release(&self) {
        let mut plan = self.plan.lock().unwrap();
        (plan.stop, plan.stopped) = (None, false);
        self.changed.notify_all();
    }
}

impl Ledger for Disk {
    fn record(&self, changed: &[(String, Option<Vec<u8>>)]) -> Result<(), String> {
        let mut plan = self.plan.lock().unwrap();
        plan.calls += 1;
        if plan.failures > 0 {
            plan.failures -= 1;
            return Err("no space left on device".to_owned());
        }
        let stop = plan
            .stop
            .as_ref()
            .filter(|stop| plan.calls > stop.at)
            .map(|stop| stop.moment);
        if stop != Some(Moment::BeforeRecord) {
            let mut records = self.records.lock().unwrap();
            for (key, bytes) in changed {
                match bytes {
                    Some(bytes) => records.insert(key.clone(), bytes.clone()),
                    None => records.remove(key),
                };
            }
        }
        if stop.is_some() {
            plan.stopped = true;
            self.changed.notify_all();
            let _released = self.changed.wait_while(plan, |plan| plan.stopped).unwrap();
        }
        match stop {
            Some(Moment::BeforeRecord) => Err("the process died".to_owned()),
            _ => Ok(()),
        }
    }
}
