//! What is kept, and under which keys.

use signalbox_core::spi::AppKey;

/// Something that keeps records for good. Its content belongs to nobody but signalbox: records of applications hold
/// private keys.
pub trait Ledger: Send + Sync {
    /// Sets (`Some`) or removes (`None`) records, all of them or none. They survive a crash once this returns.
    ///
    /// # Errors
    /// Why it could not, in words; it is tried again later.
    fn record(&self, changed: &[(String, Option<Vec<u8>>)]) -> Result<(), String>;
}

const APPLICATION: &str = "application/";
const DEAD_LETTER: &str = "dead-letter/";

/// What a key of ours has.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key {
    Application,
    /// Which one: they are counted.
    DeadLetter(u64),
}

pub(super) fn application(key: &AppKey) -> String {
    format!("{APPLICATION}{key}")
}

/// Padded, so that records in the order of their keys are in the order of their age.
pub(super) fn dead_letter(number: u64) -> String {
    format!("{DEAD_LETTER}{number:020}")
}

/// `None`: it is not one of ours.
pub(super) fn read(key: &str) -> Option<Key> {
    if let Some(number) = key.strip_prefix(DEAD_LETTER) {
        return number.parse().ok().map(Key::DeadLetter);
    }
    key.starts_with(APPLICATION).then_some(Key::Application)
}
