//! The files of one certificate.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use signalbox_core::wire::hostname::HostnamePattern;
use zeroize::Zeroizing;

use super::NamesFrom;
use crate::certificate::{CertificateFault, CertificateSource};

/// Largest file that is read; a chain with its key has some 10 KiB.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Age from which on a file's times tell that it has not changed: file systems count in steps of some milliseconds.
const SETTLED_SECONDS: u64 = 2;

/// Paths of a certificate, its key and its pass phrase.
#[derive(Clone, Debug)]
pub(super) struct CertificatePaths {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) pass: Option<PathBuf>,
    pub(super) names: NamesFrom,
    pub(super) is_default: bool,
}

/// Tells a changed file from an unchanged one: number, length and time of the last change of each.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    files: [Option<(u64, u64, i64, i64)>; 3],
    is_settled: bool,
}

impl Stamp {
    /// Whether the files are those of the other stamp for sure.
    pub(super) fn is_same(&self, now: &Self) -> bool {
        self.is_settled && self.files == now.files
    }
}

impl CertificatePaths {
    /// Paths of the files beside a certificate: `NAME.key` for `NAME.crt`, and `NAME.pass`.
    pub(super) fn beside(cert: PathBuf, names: NamesFrom) -> Self {
        let is_combined = cert.extension().is_some_and(|extension| extension == "pem");
        let key = if is_combined {
            cert.clone()
        } else {
            cert.with_extension("key")
        };
        let pass = Some(cert.with_extension("pass")).filter(|pass| pass.exists());
        Self {
            key,
            pass,
            names,
            is_default: false,
            cert,
        }
    }

    pub(super) fn stamp(&self, now: u64) -> Stamp {
        let stamp = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            Some((found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
        };
        let files = [
            stamp(&self.cert),
            stamp(&self.key),
            self.pass.as_deref().and_then(stamp),
        ];
        let last = files.iter().flatten().map(|(_, _, seconds, _)| *seconds).max();
        let last = last.and_then(|seconds| u64::try_from(seconds).ok());
        Stamp {
            files,
            is_settled: last.is_some_and(|last| last + SETTLED_SECONDS <= now),
        }
    }

    pub(super) fn read(&self) -> Result<CertificateSource, CertificateFault> {
        let names = match self.names {
            NamesFrom::Certificate => Vec::new(),
            NamesFrom::FileName => vec![alias(&self.cert)?],
        };
        let pass_phrase = self.pass.as_deref().map(read).transpose()?;
        Ok(CertificateSource {
            label: self.cert.display().to_string(),
            names,
            chain: read(&self.cert)?,
            key: read(&self.key)?,
            pass_phrase: pass_phrase.map(without_line_end),
            is_default: self.is_default,
        })
    }
}

pub(super) fn unreadable(path: &Path, why: &dyn ToString) -> CertificateFault {
    CertificateFault::File {
        path: path.display().to_string(),
        why: why.to_string(),
    }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CertificateFault> {
    let found = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if !found.is_file() || found.len() > MAX_FILE_BYTES {
        return Err(unreadable(path, &"it is not a file of at most 1 MiB"));
    }
    fs::read(path)
        .map(Zeroizing::new)
        .map_err(|error| unreadable(path, &error))
}

/// Pass phrase without the line end that editors and `echo` write.
fn without_line_end(mut text: Zeroizing<Vec<u8>>) -> Zeroizing<Vec<u8>> {
    for end in *b"\n\r" {
        if text.last() == Some(&end) {
            text.pop();
        }
    }
    text
}

/// Alias that a file is named for, with `%XX` for what is not allowed in names of files.
fn alias(path: &Path) -> Result<HostnamePattern, CertificateFault> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let mut pieces = stem.split('%');
    let mut alias = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        match code {
            Some(code) if code.is_ascii() => {
                alias.push(char::from(code));
                alias.push_str(&piece[2..]);
            }
            _ => return Err(CertificateFault::FileName { name: stem.to_owned() }),
        }
    }
    HostnamePattern::parse(&alias).map_err(|_| CertificateFault::FileName { name: alias })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_decoded_as_routing_events_encode_them() {
        let decoded = |name: &str| alias(Path::new(name)).map(|alias| alias.to_string());
        assert_eq!(decoded("/x/www.a.test.crt"), Ok("www.a.test".to_owned()));
        assert_eq!(decoded("/x/%2A.a.test.crt"), Ok("*.a.test".to_owned()));
        for bad in ["%FF.crt", "a%2.crt", "a%zz.crt", "a b.crt", "%2E%2E%2Fx.crt"] {
            assert!(matches!(decoded(bad), Err(CertificateFault::FileName { .. })), "{bad}");
        }
    }

    #[test]
    fn one_line_end_is_no_part_of_a_pass_phrase() {
        for (text, phrase) in [
            ("a b", "a b"),
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a\n\n", "a\n"),
            (" a ", " a "),
        ] {
            assert_eq!(
                *without_line_end(Zeroizing::new(text.into())),
                phrase.as_bytes(),
                "{text:?}"
            );
        }
    }
}
