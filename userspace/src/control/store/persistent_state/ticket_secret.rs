//! Secret of session tickets. On disk, so that sessions outlive the process. In the table that balancers share, so that
//! each can resume the sessions of all.

use signalbox_core::model::tls::SessionTickets;
use signalbox_tls::tickets::TicketSecret;

use super::{PersistentState, TICKET_SECRET_RECORD};
use crate::control::state_db::{RecordChange, StateDb};
use crate::sys::error_chain;

/// Key of the record of a balancer's own secret.
const OWN_KEY: &str = "own";
/// Key of the record of the shared secret. The one on disk is a copy.
pub(super) const SHARED_KEY: &str = "shared";

impl PersistentState {
    /// Secret of the tickets that listeners issue now. The first balancer at a shared table makes one for all; its own
    /// never leaves the machine. `None`: there are no tickets, or no random numbers.
    pub fn ticket_secret(&mut self, tickets: SessionTickets) -> Option<TicketSecret> {
        if tickets == SessionTickets::Off {
            return None;
        }
        let own = self.own_ticket_secret();
        self.shares_tickets = tickets == SessionTickets::Shared && self.shared.is_some();
        if !self.shares_tickets {
            return own;
        }
        if self.shared_ticket_secret.is_none() {
            let offered = TicketSecret::random()?;
            match self.put_shared(&[shared_record(&offered)]) {
                Ok(()) => self.shared_ticket_secret = Some(offered),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(
                        error,
                        "The secret of session tickets is not shared yet: only this balancer resumes its TLS sessions."
                    );
                }
            }
        }
        self.shared_ticket_secret.clone().or(own)
    }

    /// The balancer's own secret. If it cannot be stored, sessions end with the process.
    fn own_ticket_secret(&mut self) -> Option<TicketSecret> {
        if self.own_ticket_secret.is_none() {
            self.own_ticket_secret = read(&self.db, OWN_KEY);
        }
        if self.own_ticket_secret.is_none() {
            let secret = TicketSecret::random()?;
            if let Err(error) = self.put(&[record(OWN_KEY, &secret)]) {
                let error = error_chain(&error);
                tracing::warn!(
                    error,
                    "The secret of session tickets is not on disk: TLS sessions end with this process."
                );
            }
            self.own_ticket_secret = Some(secret);
        }
        self.own_ticket_secret.clone()
    }

    /// Reads the copy of the shared secret, for a start without the shared table.
    pub(super) fn restore_ticket_secret(&mut self) {
        // A secret received from the shared table since the start is newer.
        if self.shared_ticket_secret.is_none() {
            self.shared_ticket_secret = read(&self.db, SHARED_KEY);
        }
    }

    /// Adopts the secret of the shared table, if there is one. Returns whether it has changed, or must still be written
    /// there.
    pub(super) fn adopt_ticket_secret(&mut self, found: Option<TicketSecret>) -> bool {
        let is_missing = found.is_none() && self.shared_ticket_secret.is_none();
        let is_other = found.is_some() && found != self.shared_ticket_secret;
        if is_other {
            self.shared_ticket_secret = found;
        }
        self.shares_tickets && (is_other || is_missing)
    }
}

/// Record of the shared secret.
pub(super) fn shared_record(secret: &TicketSecret) -> RecordChange {
    record(SHARED_KEY, secret)
}

/// Secret in a record; `None` if the content is something else.
pub(super) fn parse(bytes: &[u8]) -> Option<TicketSecret> {
    <[u8; 32]>::try_from(bytes).ok().map(TicketSecret::new)
}

fn record(key: &str, secret: &TicketSecret) -> RecordChange {
    (TICKET_SECRET_RECORD, key.to_owned(), Some(secret.reveal().to_vec()))
}

fn read(db: &StateDb, key: &str) -> Option<TicketSecret> {
    let records = db.raw(TICKET_SECRET_RECORD).ok()?;
    records
        .iter()
        .find(|(of, _)| of == key)
        .and_then(|(_, bytes)| parse(bytes))
}
