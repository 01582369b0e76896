//! Certificates that arrive by API. They are kept as files that only signalbox may read, in a directory that is watched
//! like those of the configuration.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use signalbox_core::model::Model;
use signalbox_tls::certificate::{Certificate, CertificateError, CertificateSource};
use signalbox_tls::directory::MAX_FILE_BYTES;
use zeroize::Zeroizing;

use crate::sys::{private_directory, sync_directory, write_private};

/// Maximum length of a certificate's name.
const MAX_NAME_BYTES: usize = 100;

/// Certificate as received: PEM texts.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutCertificate {
    /// The certificate and its intermediates. May contain the key too.
    #[cfg_attr(test, schemars(with = "String"))]
    certificate: Zeroizing<String>,
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    key: Option<Zeroizing<String>>,
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pass_phrase: Option<Zeroizing<String>>,
}

/// Reason why a certificate is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The name cannot be a file name.
    #[error("{0:?} is no name for a certificate: letters, digits, `.`, `-` and `_`, 100 at most, no `.` first")]
    Name(String),
    /// The certificate or its key cannot be used.
    #[error("{0}")]
    Unusable(#[from] CertificateError),
    /// The texts are longer than files of certificates may be.
    #[error("the certificate with its key is longer than 1 MiB")]
    TooLong,
    /// The files cannot be written.
    #[error("{path}: {error}")]
    Disk { path: String, error: io::Error },
}

/// Directory of certificates that arrive by API: `NAME.pem`, and `NAME.pass`.
pub struct KeptCertificates(PathBuf);

impl KeptCertificates {
    /// Directory beside the store.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        Self(model.beside_store("certificates"))
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory if it does not exist.
    pub fn make(&self) -> io::Result<()> {
        private_directory(&self.0)
    }

    /// Checks a certificate and writes it to disk. Returns it with its label in the table of certificates.
    pub fn put(&self, name: &str, put: &PutCertificate) -> Result<Certificate, KeepError> {
        let path = self.file(name)?;
        let text = put.text();
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(KeepError::TooLong);
        }
        let bytes = |text: &Zeroizing<String>| Zeroizing::new(text.as_bytes().to_vec());
        let certificate = Certificate::load(&CertificateSource {
            label: path.display().to_string(),
            names: Vec::new(),
            chain: bytes(&text),
            key: bytes(&text),
            pass_phrase: put.pass_phrase.as_ref().map(bytes),
            is_default: false,
        })?;
        let written = self.write(name, &text, put.pass_phrase.as_ref().map(|phrase| phrase.as_str()));
        written.map_err(|error| self.disk_error(error))?;
        Ok(certificate)
    }

    fn write(&self, name: &str, text: &str, pass_phrase: Option<&str>) -> io::Result<()> {
        self.make()?;
        let pass = format!("{name}.pass");
        // Written first: a key could not be used before its pass phrase exists.
        if let Some(phrase) = pass_phrase {
            write_private(&self.0, &pass, phrase.as_bytes())?;
        }
        write_private(&self.0, &format!("{name}.pem"), text.as_bytes())?;
        if pass_phrase.is_none() {
            remove(&self.0.join(pass))?;
        }
        sync_directory(&self.0)
    }

    /// Removes a certificate. Returns its label, or `None` if no certificate has the name.
    pub fn remove(&self, name: &str) -> Result<Option<String>, KeepError> {
        let path = self.file(name)?;
        let removed = remove(&path).and_then(|was_there| {
            remove(&path.with_extension("pass"))?;
            if was_there {
                sync_directory(&self.0)?;
            }
            Ok(was_there)
        });
        let was_there = removed.map_err(|error| self.disk_error(error))?;
        Ok(was_there.then(|| path.display().to_string()))
    }

    fn disk_error(&self, error: io::Error) -> KeepError {
        KeepError::Disk {
            path: self.0.display().to_string(),
            error,
        }
    }

    fn file(&self, name: &str) -> Result<PathBuf, KeepError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_good =
            (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_plain);
        if !is_good {
            return Err(KeepError::Name(name.to_owned()));
        }
        Ok(self.0.join(format!("{name}.pem")))
    }
}

impl PutCertificate {
    /// Certificate and key in one text: because both are written in one step, they always match.
    fn text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(
            self.certificate.len() + self.key.as_ref().map_or(0, |key| key.len()) + 2,
        ));
        for part in [Some(&self.certificate), self.key.as_ref()].into_iter().flatten() {
            text.push_str(part);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
        text
    }
}

/// Removes a file. Returns whether it existed.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_plain_characters() {
        let kept = KeptCertificates(PathBuf::from("/nowhere"));
        for good in ["a", "app.example.com", "_wildcard-1"] {
            assert!(kept.file(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "../x", ".hidden", "a/b", "a b", "ä", &"x".repeat(101)] {
            assert!(matches!(kept.file(bad), Err(KeepError::Name(_))), "{bad}");
        }
    }

    #[test]
    fn a_text_that_no_file_may_have_is_refused_unread() {
        let put = PutCertificate {
            certificate: Zeroizing::new("x".repeat(2 << 20)),
            key: None,
            pass_phrase: None,
        };
        let kept = KeptCertificates(PathBuf::from("/nowhere"));
        assert!(matches!(kept.put("a", &put), Err(KeepError::TooLong)));
    }

    #[test]
    fn certificate_and_key_are_one_text() {
        let put = |certificate: &str, key: Option<&str>| PutCertificate {
            certificate: Zeroizing::new(certificate.to_owned()),
            key: key.map(|key| Zeroizing::new(key.to_owned())),
            pass_phrase: None,
        };
        assert_eq!(put("A", Some("B\n")).text().as_str(), "A\nB\n");
        assert_eq!(put("A\n", None).text().as_str(), "A\n");
    }
}
