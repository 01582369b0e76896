//! Names of fields that are added, set or removed.

use std::borrow::Cow;

use super::super::grammar::{is_same_to_hosts, is_tchar, is_token};

/// Fields that frame a message or end with the hop: an edit would contradict the balancer's own.
const NOT_EDITED: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Field name: a token. Names that differ only in case are equal.
#[derive(Clone, Debug)]
pub struct FieldName(Cow<'static, str>);

impl FieldName {
    /// Name given in the code.
    ///
    /// # Panics
    ///
    /// If the name is no token; as a constant it does not compile.
    #[must_use]
    pub const fn constant(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            assert!(is_tchar(bytes[at]), "a field name is a token");
            at += 1;
        }
        assert!(at > 0, "a field name is not empty");
        Self(Cow::Borrowed(name))
    }

    /// Name given in the configuration; `None` if it is no token.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        is_token(name.as_bytes()).then(|| Self(Cow::Owned(name.to_owned())))
    }

    /// Whether a configuration may edit the field. Fields that frame a message are the balancer's own.
    #[must_use]
    pub fn is_editable(&self) -> bool {
        !NOT_EDITED.into_iter().any(|name| self.is(name.as_bytes()))
    }

    /// Text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(super) fn is(&self, name: &[u8]) -> bool {
        self.as_bytes().eq_ignore_ascii_case(name)
    }

    /// Whether `name` is this one, perhaps with `_` for some `-`.
    pub(super) fn is_underscored(&self, name: &[u8]) -> bool {
        is_same_to_hosts(name, self.as_bytes())
    }
}

impl PartialEq for FieldName {
    fn eq(&self, other: &Self) -> bool {
        self.is(other.as_bytes())
    }
}

impl Eq for FieldName {}
