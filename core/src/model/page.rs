//! The page by which a host says whether it is well.

/// What a check by HTTP asks a host for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Begins with `/`; visible ASCII only.
    pub path: String,
    /// The Host header; `None`: the check's, or else the host's address.
    pub host: Option<String>,
}

impl Page {
    /// Whether a text can be asked for: it begins with `/`, and nothing in it could end the request's line.
    #[must_use]
    pub fn is_path(text: &str) -> bool {
        text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic()) && !text.contains('#')
    }
}
