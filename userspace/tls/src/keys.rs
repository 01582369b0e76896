//! Private keys from PEM text: PKCS#8, PKCS#1 and SEC1, plain or with a pass phrase.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::pkcs5;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use rustls::sign::SigningKey;
use zeroize::Zeroizing;

use crate::pem::{PemError, Section, sections};
use crate::provider::rustls_provider;
use crate::traditional;

/// Private key in DER, zeroed when dropped. `Debug` tells the form, and nothing of the key.
pub struct PrivateKey {
    form: KeyForm,
    der: Zeroizing<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyForm {
    Pkcs1,
    Pkcs8,
    Sec1,
}

/// Error of a private key. The texts tell the remedy and nothing of the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is no PEM.
    #[error("the private key cannot be read: {0}")]
    Pem(#[from] PemError),
    /// No section is a private key.
    #[error(
        "there is no private key: a PEM section `PRIVATE KEY`, `RSA PRIVATE KEY`, `EC PRIVATE KEY` or `ENCRYPTED PRIVATE KEY` is expected"
    )]
    Missing,
    /// Several sections are private keys.
    #[error("there are {0} private keys: leave the one that belongs to the certificate")]
    Several(usize),
    /// The key is encrypted.
    #[error(
        "the private key is encrypted and no pass phrase is known: put it into the .pass file beside the key, or decrypt the key with `openssl pkey`"
    )]
    NoPassPhrase,
    /// The pass phrase does not open the key.
    #[error("the pass phrase does not open the private key: correct the pass phrase (or its .pass file)")]
    WrongPassPhrase,
    /// The encryption of the key is not implemented.
    #[error(
        "the private key is encrypted in a way that is not supported ({0}): encrypt it anew with `openssl pkcs8 -topk8 -v2 aes-256-cbc`"
    )]
    UnsupportedEncryption(String),
    /// The kind of the key is not implemented.
    #[error(
        "a private key of the kind {0:?} is not supported: an RSA key of at least 2048 bits, an ECDSA key on P-256, P-384 or P-521, or an Ed25519 key is needed"
    )]
    UnsupportedKind(String),
    /// The key cannot be used.
    #[error(
        "the private key cannot be used: it is damaged, or neither RSA of at least 2048 bits, ECDSA on P-256, P-384 or P-521, nor Ed25519"
    )]
    Unusable,
}

impl PrivateKey {
    /// Reads the only private key of `text`, which may hold certificates, too. The pass phrase is used only if the key
    /// is encrypted.
    pub fn from_pem(text: &[u8], pass_phrase: Option<&[u8]>) -> Result<Self, KeyError> {
        let mut keys = sections(text)?;
        keys.retain(|section| section.label.ends_with("PRIVATE KEY"));
        match keys.as_slice() {
            [] => Err(KeyError::Missing),
            [key] => Self::from_section(key, pass_phrase),
            several => Err(KeyError::Several(several.len())),
        }
    }

    fn from_section(section: &Section, pass_phrase: Option<&[u8]>) -> Result<Self, KeyError> {
        let form = match section.label.as_str() {
            "PRIVATE KEY" => KeyForm::Pkcs8,
            "RSA PRIVATE KEY" => KeyForm::Pkcs1,
            "EC PRIVATE KEY" => KeyForm::Sec1,
            "ENCRYPTED PRIVATE KEY" => {
                let der = decrypt_pkcs8(&section.content, pass_phrase.ok_or(KeyError::NoPassPhrase)?)?;
                return Ok(Self {
                    form: KeyForm::Pkcs8,
                    der,
                });
            }
            other => return Err(KeyError::UnsupportedKind(other.to_owned())),
        };
        let der = if traditional::is_encrypted(section) {
            traditional::decrypt(section, pass_phrase.ok_or(KeyError::NoPassPhrase)?)?
        } else {
            section.content.clone()
        };
        Ok(Self { form, der })
    }

    /// Prepares the key for signing.
    pub fn signing_key(&self) -> Result<Arc<dyn SigningKey>, KeyError> {
        let der = self.der.as_slice();
        // Borrowed, so that rustls makes no copy that is not zeroed.
        let der = match self.form {
            KeyForm::Pkcs1 => PrivateKeyDer::Pkcs1(PrivatePkcs1KeyDer::from(der)),
            KeyForm::Pkcs8 => PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der)),
            KeyForm::Sec1 => PrivateKeyDer::Sec1(PrivateSec1KeyDer::from(der)),
        };
        // The error of the library is left out: its text is not ours to vouch for.
        rustls_provider::sign::any_supported_type(&der).map_err(|_| KeyError::Unusable)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({:?})", self.form)
    }
}

/// Decrypts PKCS#8 with PBES2 (RFC 8018).
fn decrypt_pkcs8(der: &[u8], pass_phrase: &[u8]) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let unsupported = |error: pkcs5::Error| KeyError::UnsupportedEncryption(error.to_string());
    let key = EncryptedPrivateKeyInfoRef::try_from(der).map_err(|_| {
        KeyError::UnsupportedEncryption("neither PBES2 with AES or 3DES nor another known scheme".to_owned())
    })?;
    if key.encryption_algorithm.pbes1().is_some() {
        return Err(unsupported(pkcs5::Error::NoPbes1CryptSupport));
    }
    match key
        .encryption_algorithm
        .decrypt(pass_phrase, key.encrypted_data.as_bytes())
    {
        Ok(plain) => {
            let plain = Zeroizing::new(plain);
            let is_key = traditional::is_one_sequence(&plain);
            is_key.then_some(plain).ok_or(KeyError::WrongPassPhrase)
        }
        Err(error @ (pkcs5::Error::UnsupportedAlgorithm { .. } | pkcs5::Error::NoPbes1CryptSupport)) => {
            Err(unsupported(error))
        }
        Err(_) => Err(KeyError::WrongPassPhrase),
    }
}
