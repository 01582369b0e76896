//! Errors as operators read them.

/// Formats an error with its causes, on one line.
#[must_use]
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors print their cause themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    // The verifier's log fills pages: only `--log debug` shows it.
    match text.split_once(". Verifier output:") {
        Some((brief, verifier)) => {
            tracing::debug!(verifier, "The kernel's verifier refused a program.");
            brief.to_owned()
        }
        None => text,
    }
}
