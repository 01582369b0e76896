//! Characters and form of the names that are looked up.

use crate::net::hide::hidden;

/// Most bytes of a name that is looked up; longer ones are passed up.
pub const MAX_NAME_BYTES: usize = 62;

/// Lower-case form of a byte of a host name; 0 for a byte that no name has.
#[inline(always)]
#[must_use]
pub const fn lower_case(byte: u8) -> u8 {
    match byte {
        b'A'..=b'Z' => byte | 0x20,
        b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => byte,
        _ => 0,
    }
}

/// Key of `PEEK_ROUTES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeekName {
    /// A constant of [`protocol`](super::abi::protocol).
    pub protocol: u8,
    /// Length of the name.
    pub length: u8,
    /// The name in lower case, filled up with NUL.
    pub text: [u8; MAX_NAME_BYTES],
}

impl PeekName {
    /// A name without text.
    #[inline(always)]
    #[must_use]
    pub const fn empty(protocol: u8) -> Self {
        Self {
            protocol,
            length: 0,
            text: [0; MAX_NAME_BYTES],
        }
    }

    /// The key of a name; `None` for one that is too long or has bytes that no name has.
    #[must_use]
    pub fn new(protocol: u8, name: &str) -> Option<Self> {
        let mut key = Self::empty(protocol);
        key.length = u8::try_from(name.len()).ok()?;
        for (at, byte) in name.bytes().enumerate() {
            *key.text.get_mut(at)? = byte;
            if lower_case(byte) != byte {
                return None;
            }
        }
        Some(key)
    }

    /// The name as text; `None` if it is empty, or not what [`new`](Self::new) makes.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let text = self.text.get(..usize::from(self.length))?;
        core::str::from_utf8(text).ok().filter(|text| !text.is_empty())
    }

    /// A wildcard for the names below `suffix`: its text begins with a dot, as no name's does.
    #[must_use]
    pub fn wildcard(protocol: u8, suffix: &str) -> Option<Self> {
        let mut text = [0; MAX_NAME_BYTES];
        *text.first_mut()? = b'.';
        text.get_mut(1..=suffix.len())?.copy_from_slice(suffix.as_bytes());
        Self::new(protocol, core::str::from_utf8(text.get(..=suffix.len())?).ok()?)
    }

    /// Whether it is a wildcard.
    #[must_use]
    pub const fn is_wildcard(&self) -> bool {
        self.text[0] == b'.'
    }

    /// Key of a wildcard in `PEEK_WILDCARDS`, and its length in bits.
    #[must_use]
    pub fn suffix(&self) -> (u32, PeekSuffix) {
        let mut suffix = PeekSuffix::empty(self.protocol);
        let mut reverser = NameReverser::new();
        while reverser.step(self, &mut suffix) {}
        (8 + 8 * u32::from(self.length), suffix)
    }
}

/// Key of `PEEK_WILDCARDS`, after its length in bits: names below a wildcard begin as it does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeekSuffix {
    /// A constant of [`protocol`](super::abi::protocol).
    pub protocol: u8,
    /// The name, from its last byte to its first.
    pub text: [u8; MAX_NAME_BYTES],
    /// Always zero.
    pub _pad: u8,
}

impl PeekSuffix {
    /// A key without text.
    #[inline(always)]
    #[must_use]
    pub const fn empty(protocol: u8) -> Self {
        Self {
            protocol,
            text: [0; MAX_NAME_BYTES],
            _pad: 0,
        }
    }
}

/// Reverses a name, for the search of the wildcard that it ends with, in steps that a TC program can take one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NameReverser {
    /// Bytes reversed so far.
    pub at: u32,
    /// Bytes before the first dot, of those that have been read.
    pub first_label: u32,
    /// The byte that was read last.
    last: u32,
    /// 1: no wildcard matches the name, because one of its labels is empty.
    pub is_bad: u32,
}

impl NameReverser {
    /// A name's end, as if a dot followed it: an empty last label is found as the others are.
    #[inline(always)]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            at: 0,
            first_label: 0,
            last: b'.' as u32,
            is_bad: 0,
        }
    }

    /// Reads a byte; false where none is left.
    #[inline(always)]
    pub fn step(&mut self, name: &PeekName, suffix: &mut PeekSuffix) -> bool {
        let (at, length) = (self.at, u32::from(name.length));
        if at >= length || at >= MAX_NAME_BYTES as u32 || length > MAX_NAME_BYTES as u32 {
            if self.last == u32::from(b'.') {
                self.is_bad = 1;
            }
            return false;
        }
        let from = hidden(length - 1 - at);
        if from >= MAX_NAME_BYTES as u32 {
            return false;
        }
        let byte = name.text[from as usize];
        suffix.text[at as usize] = byte;
        if byte == b'.' {
            if self.last == u32::from(b'.') {
                self.is_bad = 1;
            }
            self.first_label = from;
        }
        self.last = byte.into();
        self.at = at + 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reversed(name: &str) -> Option<(String, u32)> {
        let name = PeekName::new(1, name).unwrap();
        let (mut reverser, mut suffix) = (NameReverser::new(), PeekSuffix::empty(1));
        while reverser.step(&name, &mut suffix) {}
        let text = suffix.text[..reverser.at as usize].iter().map(|byte| char::from(*byte));
        (reverser.is_bad == 0).then(|| (text.collect(), reverser.first_label))
    }

    #[test]
    fn a_name_is_turned_around_and_its_first_label_measured() {
        assert_eq!(reversed("app.acme.test"), Some(("tset.emca.ppa".to_owned(), 3)));
        assert_eq!(reversed("test"), Some(("tset".to_owned(), 0)));
        let longest = "a.".repeat(MAX_NAME_BYTES / 2 - 1) + "bc";
        assert_eq!(reversed(&longest).unwrap().1, 1);
    }

    #[test]
    fn a_name_with_an_empty_label_is_none() {
        for bad in ["", ".", ".acme.test", "a..test", "acme.test.", ".."] {
            assert_eq!(reversed(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_wildcards_key_is_a_prefix_of_its_names_reversed_text() {
        let wildcard = PeekName::wildcard(1, "acme.test").unwrap();
        let (bits, key) = wildcard.suffix();
        assert_eq!((bits, &key.text[..10]), (8 + 80, &b"tset.emca."[..]));
        assert_eq!(PeekName::wildcard(1, &"x".repeat(MAX_NAME_BYTES)), None);
    }
}
