//! Private keys in OpenSSL's traditional encryption: `Proc-Type: 4,ENCRYPTED` and `DEK-Info` (RFC 1421, with ciphers
//! and the key derivation of OpenSSL's `PEM_read`), as `openssl genrsa -aes256` wrote them until OpenSSL 3.

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockModeDecrypt, KeyIvInit};
use cbc::Decryptor;
use md5::{Digest as _, Md5};
use zeroize::Zeroizing;

use crate::keys::KeyError;
use crate::pem::Section;

/// Whether a section is encrypted in this way.
pub(crate) fn is_encrypted(section: &Section) -> bool {
    section
        .header("Proc-Type")
        .is_some_and(|kind| kind.ends_with("ENCRYPTED"))
}

/// Decrypts a section.
pub(crate) fn decrypt(section: &Section, pass_phrase: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let unsupported = |what: &str| KeyError::UnsupportedEncryption(what.to_owned());
    let info = section.header("DEK-Info").ok_or_else(|| unsupported("no DEK-Info"))?;
    let (cipher, vector) = info.split_once(',').ok_or_else(|| unsupported(info))?;
    let vector = hex(vector.trim()).ok_or_else(|| unsupported(info))?;
    let open = match cipher.trim().to_ascii_uppercase().as_str() {
        "AES-128-CBC" => open::<Decryptor<aes::Aes128>>,
        "AES-192-CBC" => open::<Decryptor<aes::Aes192>>,
        "AES-256-CBC" => open::<Decryptor<aes::Aes256>>,
        "DES-EDE3-CBC" => open::<Decryptor<des::TdesEde3>>,
        other => return Err(unsupported(other)),
    };
    open(&section.content, pass_phrase, &vector)
        .filter(|key| is_one_sequence(key))
        .ok_or(KeyError::WrongPassPhrase)
}

/// Decrypts with the key that OpenSSL's `EVP_BytesToKey` derives: MD5, one round, the first eight bytes of the
/// initialisation vector as salt.
fn open<C>(content: &[u8], pass_phrase: &[u8], vector: &[u8]) -> Option<Zeroizing<Vec<u8>>>
where
    C: KeyIvInit + BlockModeDecrypt,
{
    let salt = vector.get(..8)?;
    let mut key = Zeroizing::new(Vec::with_capacity(C::key_size() + 16));
    let mut last = Zeroizing::new(Vec::with_capacity(16));
    while key.len() < C::key_size() {
        let digest = Md5::new()
            .chain_update(&*last)
            .chain_update(pass_phrase)
            .chain_update(salt);
        let digest = Zeroizing::new(<[u8; 16]>::from(digest.finalize()));
        last.clear();
        last.extend_from_slice(&*digest);
        key.extend_from_slice(&*digest);
    }
    key.truncate(C::key_size());
    let cipher = C::new_from_slices(&key, vector).ok()?;
    let mut buffer = Zeroizing::new(content.to_vec());
    let plain = cipher.decrypt_padded::<Pkcs7>(&mut buffer).ok()?.len();
    buffer.truncate(plain);
    Some(buffer)
}

/// Whether the bytes are a DER sequence and nothing behind it. One of 256 wrong pass phrases gives right padding, but
/// none such a sequence.
pub(crate) fn is_one_sequence(der: &[u8]) -> bool {
    let (length, head) = match *der {
        [0x30, length, ..] if length < 0x80 => (usize::from(length), 2),
        [0x30, 0x81, length, ..] => (usize::from(length), 3),
        [0x30, 0x82, high, low, ..] => (usize::from(u16::from_be_bytes([high, low])), 4),
        _ => return false,
    };
    der.len() == head + length
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let pairs = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { pairs.collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_and_der_are_checked() {
        assert_eq!(hex("00fF7a"), Some(vec![0, 255, 122]));
        assert_eq!(hex("0"), None);
        assert_eq!(hex("0g"), None);
        assert!(is_one_sequence(&[0x30, 2, 5, 0]));
        assert!(!is_one_sequence(&[0x30, 2, 5, 0, 0]));
        assert!(!is_one_sequence(&[0x31, 2, 5, 0]));
        assert!(is_one_sequence(&[&[0x30, 0x81, 0x80][..], &[0; 128]].concat()));
        assert!(is_one_sequence(&[&[0x30, 0x82, 1, 0][..], &[0; 256]].concat()));
        assert!(!is_one_sequence(&[]));
    }
}
