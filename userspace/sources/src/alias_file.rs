//! Names of the files of an alias's certificate, which the loader of certificates decodes.

/// Longest part of a file's name that is the alias's own, in bytes: 255 less endings and a hash.
pub const MAX_ALIAS_BYTES: usize = 200;

/// Encodes an alias, which may be any text: everything but letters, digits, `-` and `_` between dots becomes `%XX`.
#[must_use]
pub fn file_name(alias: &str) -> String {
    let mut name = String::new();
    for (at, byte) in alias.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && at > 0);
        if plain {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    if name.len() > MAX_ALIAS_BYTES {
        // FNV-1a, because file names must not change from one version to the next.
        let hash = alias.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        name.truncate(MAX_ALIAS_BYTES);
        name.push_str(&format!("~{hash:016x}"));
    }
    name
}
