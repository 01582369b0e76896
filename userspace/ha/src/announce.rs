//! Reports of states: to signalbox, and to the operator's program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use signalbox_api::ha::Condition;
use signalbox_core::availability::ha::notice::GroupState;
use signalbox_sources::client::{ApiClient, percent_encoded};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

use crate::Settings;

/// Time before a report that has failed is repeated.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit of a report to signalbox.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of the operator's program; the next change waits for it.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(60);

/// State of a group, for signalbox.
#[derive(Clone, Debug)]
pub(crate) struct GroupReport {
    pub(crate) group: String,
    pub(crate) state: GroupState,
    pub(crate) priority: u8,
}

/// Change that the operator's program is called with.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) priority: u8,
}

/// Reports states to signalbox in their order, until there are no more; each process that answers for the first time
/// gets all of them.
pub(crate) async fn report(
    settings: watch::Receiver<Arc<Settings>>,
    mut condition: watch::Receiver<Condition>,
    mut reports: mpsc::UnboundedReceiver<GroupReport>,
) {
    let (mut known, mut told) = (BTreeMap::new(), 0);
    let mut has_failed = false;
    loop {
        tokio::select! {
            report = reports.recv() => {
                let Some(report) = report else { return };
                has_failed |= !send(&settings, &report).await;
                known.insert(report.group.clone(), report);
            }
            changed = condition.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY_INTERVAL), if has_failed => {}
        }
        let pid = condition.borrow_and_update().pid;
        if (pid != told || has_failed) && pid != 0 {
            has_failed = false;
            for report in known.values() {
                has_failed |= !send(&settings, report).await;
            }
        }
        told = pid;
    }
}

/// Reports a state; false if that has failed.
async fn send(settings: &watch::Receiver<Arc<Settings>>, report: &GroupReport) -> bool {
    let client = ApiClient::Socket(settings.borrow().socket.clone());
    let path = format!("/api/v1/ha/groups/{}", percent_encoded(&report.group));
    let body = json!({ "state": report.state, "priority": report.priority }).to_string();
    let sent = client
        .ask_with_timeout(REPORT_TIMEOUT, Method::PUT, &path, Some(body))
        .await;
    if let Err(error) = sent {
        tracing::debug!(%error, group = report.group, "A state could not be reported to signalbox; it is tried again.");
        return false;
    }
    true
}

/// Calls the operator's program with each change in their order, until there are no more.
pub(crate) async fn call(settings: watch::Receiver<Arc<Settings>>, mut calls: mpsc::UnboundedReceiver<Call>) {
    while let Some(call) = calls.recv().await {
        let program: Option<PathBuf> = settings.borrow().ha.notify.clone();
        let Some(program) = program else { continue };
        if let Err(why) = call_one(&program, &call).await {
            tracing::warn!(program = %program.display(), name = call.name, state = call.state, why, "Notifying has failed.");
        }
    }
}

async fn call_one(program: &Path, call: &Call) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args([&call.kind, &call.name, &call.state, &call.priority.to_string()]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(NOTIFY_TIMEOUT, command.status()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(status.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("it has not ended within {} s", NOTIFY_TIMEOUT.as_secs())),
    }
}
