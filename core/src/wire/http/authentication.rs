//! Schemes of authentication that bind a connection to its client.

use crate::wire::http1::grammar::elements;

/// Whether credentials or a challenge use a scheme that authenticates the connection rather than the request. Such a
/// connection belongs to one client.
#[must_use]
pub fn authenticates_connection(value: &[u8]) -> bool {
    let is_of_connection = |element: &[u8]| {
        let scheme = element.split(|&b| b == b' ').next().unwrap_or_default();
        ["ntlm", "negotiate", "nego2"]
            .into_iter()
            .any(|name| scheme.eq_ignore_ascii_case(name.as_bytes()))
    };
    elements(value).any(is_of_connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_that_authenticate_a_connection() {
        for value in ["NTLM", "Negotiate oYG2", "nego2 abc", "Basic realm=a, NTLM"] {
            assert!(authenticates_connection(value.as_bytes()), "{value}");
        }
        for value in ["Basic bnRsbTo=", "Bearer negotiate", ""] {
            assert!(!authenticates_connection(value.as_bytes()), "{value}");
        }
    }
}
