//! The page by which a host says whether it is well.

use serde::Serialize;

/// Path and host that a check by HTTP asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthPage {
    /// Path of the request; begins with `/` and has only visible ASCII.
    pub path: String,
    /// Host header; `None`: the check's, or else the host's address.
    pub host_header: Option<String>,
}

impl HealthPage {
    /// Whether a text can be the path of a request: it begins with `/`, and nothing in it could end the request's line.
    #[must_use]
    pub fn is_valid_path(text: &str) -> bool {
        text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic()) && !text.contains('#')
    }
}
