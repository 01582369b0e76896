//! Redaction: the part of a broken text that may be kept and shown.

/// Most bytes of a text that are kept.
pub const MAX_REDACTED_BYTES: usize = 4096;

/// Beginnings of secrets, in lower case: keys of `add_ssl`, PEM, and PEM in base64 (`-----BEGIN`).
const SECRET_MARKERS: [&str; 4] = ["private", "pass_phrase", "passphrase", "ls0tls1crudjti"];

/// First [`MAX_REDACTED_BYTES`] bytes of a text that could not be parsed, cut off at the first word that may announce a
/// private key or pass phrase. The end of a secret cannot be told in a text that is not YAML.
#[must_use]
pub fn redact(text: &str) -> String {
    // Folding ASCII alone keeps the indices of the text.
    let folded = text.to_ascii_lowercase();
    let secret = SECRET_MARKERS.iter().filter_map(|mark| folded.find(mark)).min();
    let mut end = text.len().min(MAX_REDACTED_BYTES).min(secret.unwrap_or(usize::MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let hidden = secret.is_some_and(|at| at <= end);
    let mut kept = text[..end].to_owned();
    if hidden {
        kept.push_str("(hidden: there may be a private key from here on)");
    }
    kept
}
