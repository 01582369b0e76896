//! What of a text may be kept and shown, whatever is wrong with it.

/// The most that is kept, in bytes.
pub const KEPT: usize = 4096;

/// Where a secret may begin, in lower case: keys of `add_ssl`, PEM, and PEM in base64 (`-----BEGIN`).
const MARKS: [&str; 4] = ["private", "pass_phrase", "passphrase", "ls0tls1crudjti"];

/// The first [`KEPT`] bytes of a text that nobody understood; nothing of it from the first word on that may announce a
/// private key or pass phrase. Where a secret ends cannot be told in a text that is not YAML.
#[must_use]
pub fn redact(text: &str) -> String {
    // ASCII only, so that places in it are places in the text.
    let folded = text.to_ascii_lowercase();
    let secret = MARKS.iter().filter_map(|mark| folded.find(mark)).min();
    let mut end = text.len().min(KEPT).min(secret.unwrap_or(usize::MAX));
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
