//! Options of the Connection field (RFC 9110, section 7.6.1).

use super::fields::FieldSection;
use super::grammar::{elements, is_token};

/// Fields that a message cannot be sent on without: a Connection field that names one is an attempt to have it removed.
const END_TO_END: [&str; 3] = ["host", "content-length", "transfer-encoding"];

/// Connection options of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// `close`: the sender closes after this exchange.
    pub close: bool,
    /// `keep-alive`: the sender of an HTTP/1.0 message keeps the connection.
    pub keep_alive: bool,
    /// `upgrade`: the Upgrade field is for the next hop.
    pub upgrade: bool,
    /// Other options are there: names of fields that are not sent on.
    pub names_fields: bool,
}

impl ConnectionOptions {
    /// Reads the Connection fields. `None` if they name a field that a message cannot do without.
    pub(super) fn read(fields: &FieldSection, buffer: &[u8]) -> Option<Self> {
        let mut options = Self::default();
        let mut are_tokens = true;
        for option in fields.values(buffer, "connection").flat_map(elements) {
            let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
            if is("close") {
                options.close = true;
            } else if is("keep-alive") {
                options.keep_alive = true;
            } else if is("upgrade") {
                options.upgrade = true;
            } else if END_TO_END.into_iter().any(is) {
                return None;
            } else {
                options.names_fields = true;
                are_tokens &= is_token(option);
            }
        }
        // Others do not find `keep-alive` in a malformed list: the connection ends, as is usual in HTTP/1.0.
        options.keep_alive &= are_tokens;
        Some(options)
    }
}
