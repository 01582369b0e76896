//! Host names: lower-case, checked once, compared byte by byte from then on.

use std::fmt;

/// DNS host name in lower case without a trailing dot (RFC 1123 with `_` allowed; compared per RFC 4343).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hostname(Box<str>);

/// Error of a text that is not a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// The text is empty.
    #[error("the host name is empty")]
    Empty,
    /// The name is longer than DNS allows.
    #[error("the host name is longer than 253 characters")]
    TooLong,
    /// A label is empty or too long.
    #[error("a label of the host name is empty or longer than 63 characters")]
    BadLabel,
    /// The name has a character that no host name has.
    #[error(
        "the host name holds a character other than letters, digits, `-`, `_` and `.` (write international names in punycode, xn--...)"
    )]
    BadCharacter,
    /// A `*` is not the whole first label.
    #[error("a wildcard is written `*.example.com`: one star, as the whole first label")]
    BadWildcard,
}

impl Hostname {
    /// Parses a name as written in a ClientHello, a Host header (without port) or the configuration.
    pub fn parse(text: &[u8]) -> Result<Self, HostnameError> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        if text.is_empty() {
            return Err(HostnameError::Empty);
        }
        if text.len() > 253 {
            return Err(HostnameError::TooLong);
        }
        let mut name = String::with_capacity(text.len());
        let mut label = 0usize;
        for &byte in text {
            match byte {
                b'.' if label == 0 => return Err(HostnameError::BadLabel),
                b'.' => label = 0,
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' if label == 63 => {
                    return Err(HostnameError::BadLabel);
                }
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => label += 1,
                _ => return Err(HostnameError::BadCharacter),
            }
            name.push(char::from(byte.to_ascii_lowercase()));
        }
        if label == 0 {
            return Err(HostnameError::BadLabel);
        }
        Ok(Self(name.into()))
    }

    /// Text of the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self.0)
    }
}

impl serde::Serialize for Hostname {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Host pattern of a route: one name, or every name below a suffix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostnamePattern {
    /// Single name: `app.example.com`.
    Exact(Hostname),
    /// Wildcard `*.example.com`: names that end in `.example.com`, but not `example.com` itself. A [`WildcardDepth`]
    /// says how many labels the star stands for. The field is the suffix without star and dot.
    Wildcard(Hostname),
}

impl HostnamePattern {
    /// Parses `app.example.com` or `*.example.com`.
    pub fn parse(text: &str) -> Result<Self, HostnameError> {
        match text.strip_prefix("*.") {
            Some(rest) if rest.contains('*') => Err(HostnameError::BadWildcard),
            Some(rest) => Hostname::parse(rest.as_bytes()).map(Self::Wildcard),
            None if text.contains('*') => Err(HostnameError::BadWildcard),
            None => Hostname::parse(text.as_bytes()).map(Self::Exact),
        }
    }

    /// Whether the pattern matches a name.
    #[must_use]
    pub fn matches(&self, name: &Hostname, depth: WildcardDepth) -> bool {
        match self {
            Self::Exact(exact) => exact == name,
            Self::Wildcard(suffix) => {
                let rest = name.as_str().strip_suffix(suffix.as_str());
                let labels = rest
                    .and_then(|rest| rest.strip_suffix('.'))
                    .filter(|labels| !labels.is_empty());
                labels.is_some_and(|labels| depth == WildcardDepth::Any || !labels.contains('.'))
            }
        }
    }
}

/// Number of labels that the star of a wildcard stands for. The wider depth is the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WildcardDepth {
    /// Exactly one label, as in OpenShift's Routes and in Ingresses.
    One,
    /// At least one label, as in the configuration and in the Gateway API.
    #[default]
    Any,
}

impl WildcardDepth {
    /// Whether the depth is [`Self::Any`], which is the default and need not be written.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        matches!(self, Self::Any)
    }
}

impl fmt::Display for HostnamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Wildcard(name) => write!(f, "*.{name}"),
        }
    }
}

impl serde::Serialize for HostnamePattern {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for HostnamePattern {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|error| serde::de::Error::custom(format!("{text:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_folded_to_lower_case_and_lose_the_trailing_dot() {
        assert_eq!(
            Hostname::parse(b"App1.Example.COM.").unwrap().as_str(),
            "app1.example.com"
        );
    }

    #[test]
    fn a_star_stands_for_one_label_or_for_any_number() {
        let star = HostnamePattern::parse("*.acme.test").unwrap();
        for (name, one, any) in [
            ("x.acme.test", true, true),
            ("y.x.acme.test", false, true),
            ("acme.test", false, false),
            ("xacme.test", false, false),
        ] {
            let parsed = Hostname::parse(name.as_bytes()).unwrap();
            assert_eq!(star.matches(&parsed, WildcardDepth::One), one, "{name}");
            assert_eq!(star.matches(&parsed, WildcardDepth::Any), any, "{name}");
        }
        let exact = HostnamePattern::parse("acme.test").unwrap();
        assert!(exact.matches(&Hostname::parse(b"acme.test").unwrap(), WildcardDepth::One));
    }

    #[test]
    fn invalid_hostnames_are_refused_with_the_reason() {
        assert_eq!(Hostname::parse(b""), Err(HostnameError::Empty));
        assert_eq!(Hostname::parse(b"."), Err(HostnameError::Empty));
        assert_eq!(Hostname::parse(b"a..b"), Err(HostnameError::BadLabel));
        assert_eq!(Hostname::parse(b"a b"), Err(HostnameError::BadCharacter));
        assert_eq!(
            Hostname::parse("bücher.example".as_bytes()),
            Err(HostnameError::BadCharacter)
        );
        assert_eq!(Hostname::parse(&[b'a'; 64]), Err(HostnameError::BadLabel));
        assert_eq!(Hostname::parse(&b"ab.".repeat(100)), Err(HostnameError::TooLong));
        for bad in ["*", "*foo.com", "a.*.com", "*.*.com"] {
            assert_eq!(HostnamePattern::parse(bad), Err(HostnameError::BadWildcard), "{bad}");
        }
    }
}
