//! Session tickets of the load's clients, of which rustls' own memory keeps eight: too few for 100 connections at once.

use std::sync::Mutex;

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// Most tickets that are kept.
const MAX_TICKETS: usize = 1024;

/// Tickets of TLS 1.3 of one server, each used once.
#[derive(Default)]
pub(super) struct Tickets(Mutex<Vec<Tls13ClientSessionValue>>);

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets")
    }
}

impl Tickets {
    fn with<T>(&self, act: impl FnOnce(&mut Vec<Tls13ClientSessionValue>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.with(|tickets| {
            if tickets.len() < MAX_TICKETS {
                tickets.push(value);
            }
        });
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.with(Vec::pop)
    }
}
