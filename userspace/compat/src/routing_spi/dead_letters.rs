//! Dead letters: messages that could not be understood, the newest of them, for operators to see.

use std::collections::VecDeque;

use signalbox_api::events::DeadLetter;
use signalbox_core::discovered::spi::redact;

use super::ledger;
use signalbox_sys::unix_ms;

/// Number of dead letters that are kept, so that a broken publisher cannot fill the disk.
const MAX_DEAD_LETTERS: usize = 100;

/// Makes a dead letter of a message.
pub(super) fn dead_letter(reason: &str, text: &str) -> DeadLetter {
    DeadLetter {
        at_ms: unix_ms(),
        reason: reason.to_owned(),
        text: redact(text),
    }
}

/// The newest dead letters, oldest first, with their numbers.
#[derive(Debug, Default)]
pub(super) struct DeadLetters(VecDeque<(u64, DeadLetter)>);

impl DeadLetters {
    /// Restores a dead letter from a record; records come in any order.
    pub(super) fn restore(&mut self, number: u64, letter: DeadLetter) {
        let at = self.0.partition_point(|(known, _)| *known < number);
        self.0.insert(at, (number, letter));
    }

    /// Returns the change of records that makes a message a dead letter; once recorded, it can be added.
    pub(super) fn record_of(&self, letter: &DeadLetter) -> Vec<(String, Option<Vec<u8>>)> {
        let bytes = serde_json::to_vec(letter).expect("two strings and a number are JSON");
        let excess = (self.0.len() + 1).saturating_sub(MAX_DEAD_LETTERS);
        let old = self
            .0
            .iter()
            .take(excess)
            .map(|(number, _)| (ledger::dead_letter(*number), None));
        old.chain([(ledger::dead_letter(self.next()), Some(bytes))]).collect()
    }

    pub(super) fn add(&mut self, letter: DeadLetter) {
        self.0.push_back((self.next(), letter));
        let excess = self.0.len().saturating_sub(MAX_DEAD_LETTERS);
        self.0.drain(..excess);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DeadLetter> {
        self.0.iter().map(|(_, letter)| letter)
    }

    fn next(&self) -> u64 {
        self.0.back().map_or(0, |(number, _)| number.saturating_add(1))
    }
}
