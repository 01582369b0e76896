//! Characters and form of the names that are looked up.

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
