//! Thread that writes the access log, so that no other thread waits for it.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use signalbox_core::model::LogTarget;

use super::output::LogOutput;
use super::{AccessLog, ConnectionRecord, DropReason, FlowDetails, FlowKey, LogMessage, line};

/// Interval at which the writer checks whether to reopen the file.
const REOPEN_INTERVAL: Duration = Duration::from_millis(100);

/// Most bytes written at once.
const MAX_BATCH_BYTES: usize = 64 * 1024;

/// Data of flows in the flow table, by index, with the tick at which each flow began. Unused data is replaced by the
/// next flow with the same index.
type DetailsByIndex = HashMap<u32, (u32, Box<FlowDetails>)>;

/// Writes lines for as long as the process lives.
pub(super) fn run(log: &AccessLog, inbox: &Receiver<LogMessage>) {
    let (mut output, mut details_by_index) = (LogOutput::default(), DetailsByIndex::new());
    let (mut buffer, mut lines) = (Vec::new(), 0);
    loop {
        let first = match inbox.recv_timeout(REOPEN_INTERVAL) {
            Ok(note) => Some(note),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let target = reopen_if_requested(log, &mut output, &mut details_by_index);
        let mut flushes = Vec::new();
        let mut next = first;
        while let Some(note) = next.take() {
            match note {
                LogMessage::Cut((index, began), details) => {
                    details_by_index.insert(index, (began, details));
                }
                LogMessage::Ended(mut record, key) => {
                    complete(&mut record, key, &mut details_by_index);
                    line::append(&mut buffer, &record);
                    lines += 1;
                }
                LogMessage::Flush(done) => flushes.push(done),
            }
            if buffer.len() < MAX_BATCH_BYTES {
                next = inbox.try_recv().ok();
            }
        }
        if lines > 0 {
            write(log, &mut output, target.as_ref(), &buffer, lines);
            buffer.clear();
            lines = 0;
        }
        for done in flushes {
            let _ = done.try_send(());
        }
    }
}

/// Reopens the file if requested. Returns the target of lines.
fn reopen_if_requested(
    log: &AccessLog,
    output: &mut LogOutput,
    details_by_index: &mut DetailsByIndex,
) -> Option<LogTarget> {
    let wanted = log.reopen_requested.load(Relaxed);
    let target = log.target();
    if log.reopen_done.load(Relaxed) != wanted {
        match &target {
            Some(target) => output.open(target),
            None => {
                output.close();
                // No later line will use the details.
                details_by_index.clear();
            }
        }
        log_error_change(log, output.failure());
        log.reopen_done.store(wanted, Relaxed);
    }
    target
}

/// Completes the record of a cut flow with the data stored when it began.
fn complete(record: &mut ConnectionRecord, key: Option<FlowKey>, details_by_index: &mut DetailsByIndex) {
    let Some((index, began)) = key else { return };
    let Some((_, details)) = details_by_index.remove(&index).filter(|(of, _)| *of == began) else {
        return;
    };
    record.client = details.client;
    record.name = details.name;
    record.connect = Some(details.connect);
    record.connection_id = details.connection_id;
    record.request = details.request;
    record.duration += details.setup;
}

fn write(log: &AccessLog, output: &mut LogOutput, target: Option<&LogTarget>, buffer: &[u8], lines: u64) {
    // The log was switched off while the lines waited.
    let Some(target) = target else { return };
    let outcome = output.write(buffer, target);
    log.written.add(outcome.written);
    let lost = lines.saturating_sub(outcome.written);
    if lost > 0 {
        log.count_dropped(DropReason::Write, lost);
    }
    log_error_change(log, outcome.error.as_deref());
}

/// Logs once that the access log cannot be written, and once that it can again.
fn log_error_change(log: &AccessLog, error: Option<&str>) {
    let mut trouble = log.error.lock();
    match (trouble.is_some(), error) {
        (false, Some(error)) => {
            tracing::error!(
                error,
                "Connections are not logged; signalbox_access_log_dropped_total counts them."
            );
        }
        (true, None) => tracing::info!("Connections are logged again."),
        _ => {}
    }
    *trouble = error.map(str::to_owned);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_s_line_has_what_its_own_beginning_was() {
        let details = |name: &str| {
            Box::new(FlowDetails {
                client: "192.0.2.9:1".parse().unwrap(),
                name: signalbox_core::wire::hostname::Hostname::parse(name.as_bytes()).ok(),
                connect: Duration::from_millis(3),
                connection_id: None,
                setup: Duration::from_millis(10),
                request: None,
            })
        };
        let mut details_by_index = DetailsByIndex::from([(5, (70, details("a.test"))), (6, (71, details("b.test")))]);
        let mut record = line::tests::record();
        let (name, duration) = (record.name.clone(), record.duration);
        complete(&mut record, Some((5, 69)), &mut details_by_index);
        assert_eq!(
            (&record.name, record.duration),
            (&name, duration),
            "an earlier flow's entry"
        );
        complete(&mut record, Some((6, 71)), &mut details_by_index);
        assert_eq!(record.name.unwrap().as_str(), "b.test");
        assert_eq!(record.duration, duration + Duration::from_millis(10));
        assert!(details_by_index.is_empty());
    }
}
