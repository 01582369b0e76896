//! Sections of PEM text (RFC 7468), with the headers that RFC 1421 allows and OpenSSL writes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Section between two lines of dashes. Has no `Debug`: the content may be a private key.
pub(crate) struct Section {
    /// Text of the first line: `CERTIFICATE`, `RSA PRIVATE KEY`.
    pub(crate) label: String,
    /// Headers such as `Proc-Type`, with their values.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content: Zeroizing<Vec<u8>>,
    /// Number of the section's first line, from 1.
    pub(crate) line: usize,
}

impl Section {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// Error of PEM text, with the line where the section begins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// The text has bytes that no PEM file has: perhaps it is DER.
    #[error(
        "this is no PEM text (a DER file becomes PEM with `openssl x509 -inform der` or `openssl pkey -inform der`)"
    )]
    NotText,
    /// The section's last line is missing: the file may be half-written.
    #[error("the section {label:?} of line {line} has no END line: the file is cut off")]
    NoEnd {
        /// First line's text.
        label: String,
        /// First line's number.
        line: usize,
    },
    /// The section's content is no base64.
    #[error("the section {label:?} of line {line} is not valid base64")]
    NotBase64 {
        /// First line's text.
        label: String,
        /// First line's number.
        line: usize,
    },
}

/// Reads all sections; text around them is a comment.
pub(crate) fn sections(text: &[u8]) -> Result<Vec<Section>, PemError> {
    let text = std::str::from_utf8(text).map_err(|_| PemError::NotText)?;
    let mut lines = text.lines().map(str::trim).enumerate();
    let mut all = Vec::new();
    while let Some((at, line)) = lines.next() {
        let Some(label) = boundary(line, "-----BEGIN ") else {
            continue;
        };
        let end = |line: &str| boundary(line, "-----END ") == Some(label);
        // As long as the section, so that the base64 of a key is not left behind by a growing buffer.
        let mut body = Zeroizing::new(String::with_capacity(section_length(text, line)));
        let mut headers = Vec::new();
        let line = at + 1;
        let label = label.to_owned();
        loop {
            match lines.next() {
                None => return Err(PemError::NoEnd { label, line }),
                Some((_, text)) if end(text) => break,
                Some((_, text)) if text.starts_with("-----") => return Err(PemError::NoEnd { label, line }),
                Some((_, text)) => match text.split_once(':') {
                    Some((name, value)) => headers.push((name.trim().to_owned(), value.trim().to_owned())),
                    None => body.push_str(text),
                },
            }
        }
        let mut content = Zeroizing::new(Vec::with_capacity(body.len()));
        if STANDARD.decode_vec(body.as_bytes(), &mut content).is_err() {
            return Err(PemError::NotBase64 { label, line });
        }
        all.push(Section {
            label,
            headers,
            content,
            line,
        });
    }
    Ok(all)
}

/// Bytes from a line of the text to the next line that ends a section.
fn section_length(text: &str, line: &str) -> usize {
    let start = line.as_ptr().addr() - text.as_ptr().addr();
    let rest = text.get(start..).unwrap_or(text);
    rest.find("\n-----END ").unwrap_or(rest.len())
}

fn boundary<'a>(line: &'a str, start: &str) -> Option<&'a str> {
    line.strip_prefix(start)?.strip_suffix("-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "Bag Attributes\n  x: y\n-----BEGIN A B-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: X,00\r\n\r\naGVs\r\nbG8=\r\n-----END A B-----\n\n-----BEGIN C-----\n-----END C-----";

    #[test]
    fn sections_have_labels_headers_and_lines() {
        let all = sections(TWO.as_bytes()).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].label.as_str(), all[0].line), ("A B", 3));
        assert_eq!(all[0].header("proc-type"), Some("4,ENCRYPTED"));
        assert_eq!(*all[0].content, b"hello");
        assert_eq!((all[1].label.as_str(), all[1].line, all[1].content.len()), ("C", 11, 0));
    }

    #[test]
    fn the_buffer_of_a_section_is_as_long_as_the_section() {
        let many = "-----BEGIN A-----\naGVsbG8=\n-----END A-----\n".repeat(3);
        for (at, line) in many.lines().enumerate().step_by(3) {
            assert_eq!(section_length(&many, line), "-----BEGIN A-----\naGVsbG8=".len(), "{at}");
        }
        assert_eq!(section_length(&many[..17], &many[..17]), 17);
    }

    #[test]
    fn every_cut_of_a_file_is_an_error_or_has_fewer_sections() {
        let text = "-----BEGIN A-----\naGVsbG8=\n-----END A-----\n";
        let whole = text.trim_end().len();
        for end in 0..whole {
            assert!(
                sections(&text.as_bytes()[..end]).map_or(true, |found| found.is_empty()),
                "{end}"
            );
        }
        assert_eq!(sections(&text.as_bytes()[..whole]).unwrap().len(), 1);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = |text: &[u8]| sections(text).err().map(|error| error.to_string()).unwrap();
        assert!(error(b"\n-----BEGIN A-----\n?\n-----END A-----").contains("line 2 is not valid base64"));
        assert!(error(b"-----BEGIN A-----\n-----BEGIN A-----\n-----END A-----").contains("line 1 has no END"));
        assert!(error(b"\x30\x82\xff").contains("openssl x509 -inform der"));
    }
}
