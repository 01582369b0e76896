//! Characters and lists of HTTP fields (RFC 9110, sections 5.5 and 5.6).

/// Whether a byte is a `tchar` (RFC 9110, section 5.6.2).
#[must_use]
pub const fn is_tchar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

/// Whether text is a `token`: at least one [`tchar`](is_tchar) and nothing else.
#[must_use]
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&b| is_tchar(b))
}

/// Whether a field's name is a known one to hosts that take `_` for `-`, as CGI, WSGI and Rack do.
#[must_use]
pub fn is_same_to_hosts(name: &[u8], known: &[u8]) -> bool {
    let is_same = |(a, b): (&u8, &u8)| a.eq_ignore_ascii_case(b) || (*a == b'_' && *b == b'-');
    name.len() == known.len() && name.iter().zip(known).all(is_same)
}

/// Whether a byte is allowed in a field value: `field-vchar`, SP or HTAB (RFC 9110, section 5.5).
#[must_use]
pub const fn is_field_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

/// Whether text is a field value without white space around it.
#[must_use]
pub fn is_field_value(text: &[u8]) -> bool {
    text.iter().all(|&b| is_field_byte(b)) && trim_ows(text).len() == text.len()
}

/// Whether a byte is optional white space: SP or HTAB (RFC 9110, section 5.6.3).
#[must_use]
pub const fn is_ows(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Text without optional white space around it.
#[must_use]
pub const fn trim_ows(mut text: &[u8]) -> &[u8] {
    while let [first, rest @ ..] = text {
        if !is_ows(*first) {
            break;
        }
        text = rest;
    }
    while let [rest @ .., last] = text {
        if !is_ows(*last) {
            break;
        }
        text = rest;
    }
    text
}

/// Elements of a comma-separated list of tokens; empty elements are left out (RFC 9110, section 5.6.1.2). Not for lists
/// whose elements may hold quoted commas.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&b| b == b',')
        .map(trim_ows)
        .filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_loses_white_space_and_empty_elements() {
        let found: Vec<&[u8]> = elements(b" close ,, \tUpgrade,").collect();
        assert_eq!(found, [&b"close"[..], b"Upgrade"]);
        assert_eq!(elements(b"").count(), 0);
    }

    #[test]
    fn a_field_value_has_no_control_chars_or_surrounding_spaces() {
        for good in [&b""[..], b"a b\tc", b"\xfcber", b"\"q\""] {
            assert!(is_field_value(good), "{good:?}");
        }
        for bad in [&b" a"[..], b"a\t", b"a\r\nb", b"a\0", b"\x7f"] {
            assert!(!is_field_value(bad), "{bad:?}");
        }
    }
}
