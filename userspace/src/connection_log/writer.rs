//! Thread that writes the connection log: nobody waits for it.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use signalbox_core::model::LogTarget;

use super::output::Output;
use super::{ConnectionLog, Dropped, Key, Note, Opening, Record, line};

/// Interval at which the writer checks whether the file is to be opened anew.
const REOPEN_INTERVAL: Duration = Duration::from_millis(100);

/// Most bytes written at once.
const MAX_BATCH_BYTES: usize = 64 * 1024;

/// Openings of flows of the flow table, by index: the tick at which the flow began, and its data. One that nobody asks
/// for is replaced by the next flow of its index.
type Openings = HashMap<u32, (u32, Box<Opening>)>;

/// Writes lines for as long as the process lives.
pub(super) fn run(log: &ConnectionLog, inbox: &Receiver<Note>) {
    let (mut output, mut openings) = (Output::default(), Openings::new());
    let (mut buffer, mut lines) = (Vec::new(), 0);
    loop {
        let first = match inbox.recv_timeout(REOPEN_INTERVAL) {
            Ok(note) => Some(note),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let target = follow(log, &mut output, &mut openings);
        let mut flushes = Vec::new();
        let mut next = first;
        while let Some(note) = next.take() {
            match note {
                Note::Cut((index, began), opening) => {
                    openings.insert(index, (began, opening));
                }
                Note::Ended(mut record, key) => {
                    complete(&mut record, key, &mut openings);
                    line::append(&mut buffer, &record);
                    lines += 1;
                }
                Note::Flush(done) => flushes.push(done),
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

/// Opens the file anew if that is requested. Returns the target of lines.
fn follow(log: &ConnectionLog, output: &mut Output, openings: &mut Openings) -> Option<LogTarget> {
    let wanted = log.wanted.load(Relaxed);
    let target = log.target();
    if log.opened.load(Relaxed) != wanted {
        match &target {
            Some(target) => output.open(target),
            None => {
                output.close();
                // No line will use the openings.
                openings.clear();
            }
        }
        note(log, output.failure());
        log.opened.store(wanted, Relaxed);
    }
    target
}

/// Completes the record of a cut flow with the data kept from its beginning.
fn complete(record: &mut Record, key: Option<Key>, openings: &mut Openings) {
    let Some((index, began)) = key else { return };
    let Some((_, opening)) = openings.remove(&index).filter(|(of, _)| *of == began) else {
        return;
    };
    record.client = opening.client;
    record.name = opening.name;
    record.connect = Some(opening.connect);
    record.duration += opening.before;
}

fn write(log: &ConnectionLog, output: &mut Output, target: Option<&LogTarget>, buffer: &[u8], lines: u64) {
    // The log was switched off while the lines waited.
    let Some(target) = target else { return };
    let outcome = output.write(buffer, target);
    log.written.add(outcome.written);
    let lost = lines.saturating_sub(outcome.written);
    if lost > 0 {
        log.drop_lines(Dropped::Write, lost);
    }
    note(log, outcome.error.as_deref());
}

/// Logs once that the connection log cannot be written, and once that it can again.
fn note(log: &ConnectionLog, error: Option<&str>) {
    let mut trouble = log.trouble.lock().unwrap_or_else(PoisonError::into_inner);
    match (trouble.is_some(), error) {
        (false, Some(error)) => {
            tracing::error!(
                error,
                "Connections are not logged; signalbox_connection_log_dropped_total counts them."
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
        let opening = |name: &str| {
            Box::new(Opening {
                client: "192.0.2.9:1".parse().unwrap(),
                name: signalbox_core::hostname::Hostname::parse(name.as_bytes()).ok(),
                connect: Duration::from_millis(3),
                before: Duration::from_millis(10),
            })
        };
        let mut openings = Openings::from([(5, (70, opening("a.test"))), (6, (71, opening("b.test")))]);
        let mut record = line::tests::record();
        let (name, duration) = (record.name.clone(), record.duration);
        complete(&mut record, Some((5, 69)), &mut openings);
        assert_eq!(
            (&record.name, record.duration),
            (&name, duration),
            "an earlier flow's entry"
        );
        complete(&mut record, Some((6, 71)), &mut openings);
        assert_eq!(record.name.unwrap().as_str(), "b.test");
        assert_eq!(record.duration, duration + Duration::from_millis(10));
        assert!(openings.is_empty());
    }
}
