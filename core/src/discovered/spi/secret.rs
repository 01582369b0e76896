//! Secrets: text that is never shown.

use std::fmt;

use serde::{Serialize, Serializer};

/// Text shown in place of a secret.
const HIDDEN: &str = "(hidden)";

/// Private key or pass phrase. Debug and JSON say `(hidden)`; only [`Self::reveal`] gives the text away.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps a text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Text of the secret, for a file or record that only its owner may read.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}
