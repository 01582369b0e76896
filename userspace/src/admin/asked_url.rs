//! The name or URL in a request to `explain`.

use signalbox_core::model::Protocol;
use signalbox_core::wire::hostname::Hostname;

/// Name or URL to explain.
pub(super) struct AskedUrl {
    pub(super) name: Hostname,
    /// Path of the URL, without its query.
    pub(super) path: Option<String>,
    /// Protocol of the URL's scheme.
    pub(super) protocol: Option<Protocol>,
}

impl AskedUrl {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (protocol, rest) = match text.split_once("://") {
            Some(("https" | "wss", rest)) => (Some(Protocol::Tls), rest),
            Some(("http" | "ws", rest)) => (Some(Protocol::Http), rest),
            Some((scheme, _)) => return Err(format!("the scheme {scheme:?} is neither http nor https")),
            None => (None, text),
        };
        let (host, path) = match (protocol, rest.find(['/', '?'])) {
            (Some(_), Some(at)) => rest.split_at(at),
            _ => (rest, ""),
        };
        let host = match (protocol, host.split_once(':')) {
            (Some(_), Some((host, _))) => host,
            _ => host,
        };
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self {
            name: Hostname::parse(host.as_bytes()).map_err(|error| format!("host: {error}"))?,
            path: protocol.map(|_| path.to_owned()),
            protocol,
        })
    }

    /// The question with another path, which may have a query.
    pub(super) fn with_path(mut self, path: Option<&str>) -> Result<Self, String> {
        if let Some(path) = path {
            if !path.starts_with('/') {
                return Err(format!("path: {path:?} does not begin with a slash"));
            }
            self.path = path.split(['?', '#']).next().map(str::to_owned);
        }
        Ok(self)
    }
}
