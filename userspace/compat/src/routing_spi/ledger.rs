//! Ledger: the records of the source, and their keys.

use signalbox_core::discovered::spi::AppKey;

/// Storage that keeps records for good. Its content is for signalbox only: records of applications hold private keys.
pub trait Ledger: Send + Sync {
    /// Sets (`Some`) or removes (`None`) records, all of them or none. They survive a crash once this returns.
    ///
    /// # Errors
    /// Reason in words; the caller tries again later.
    fn record(&self, changed: &[(String, Option<Vec<u8>>)]) -> Result<(), String>;
}

const APPLICATION: &str = "application/";
const DEAD_LETTER: &str = "dead-letter/";

/// Kind of a record, by its key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LedgerKey {
    Application,
    /// Number of a dead letter.
    DeadLetter(u64),
}

pub(super) fn application(key: &AppKey) -> String {
    format!("{APPLICATION}{key}")
}

/// Returns the key of a dead letter, padded so that the order of keys is the order of age.
pub(super) fn dead_letter(number: u64) -> String {
    format!("{DEAD_LETTER}{number:020}")
}

/// Reads a key; `None`: it is not a key of the ledger.
pub(super) fn read(key: &str) -> Option<LedgerKey> {
    if let Some(number) = key.strip_prefix(DEAD_LETTER) {
        return number.parse().ok().map(LedgerKey::DeadLetter);
    }
    key.starts_with(APPLICATION).then_some(LedgerKey::Application)
}
