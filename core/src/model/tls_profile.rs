//! Profiles of Mozilla's "Server Side TLS" (version 5.7), in names that no TLS library owns.

use std::str::FromStr;

/// Profile of TLS versions and cipher suites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// TLS 1.3 only.
    Modern,
    /// TLS 1.2 with ECDHE and AEAD, and TLS 1.3.
    #[default]
    Intermediate,
}

/// Error of a profile that is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Mozilla's `old`.
    #[error(
        "the profile `old` is not available: its TLS 1.0 and 1.1, and its suites with CBC, 3DES or RSA key exchange, are not implemented by rustls (RFC 8996 deprecates the versions); write `intermediate`, or route such clients by passthrough to hosts that still speak them"
    )]
    Old,
    /// A name that no profile has.
    #[error("unknown profile {0:?}: write `modern` or `intermediate`")]
    Unknown(String),
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "modern" => Ok(Self::Modern),
            "intermediate" => Ok(Self::Intermediate),
            "old" => Err(ProfileError::Old),
            other => Err(ProfileError::Unknown(other.to_owned())),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Profile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Group of the key exchange (RFC 8446, section 4.2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum KeyExchangeGroup {
    /// X25519 with the post-quantum ML-KEM-768 beside it; TLS 1.3 only.
    #[serde(rename = "X25519MLKEM768")]
    X25519MlKem768,
    /// X25519.
    X25519,
    /// NIST's P-256, secp256r1.
    #[serde(rename = "P-256")]
    P256,
    /// NIST's P-384, secp384r1.
    #[serde(rename = "P-384")]
    P384,
}

impl KeyExchangeGroup {
    /// All groups, in the order in which a server prefers them.
    pub const ALL: [Self; 4] = [Self::X25519MlKem768, Self::X25519, Self::P256, Self::P384];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_is_refused_with_the_reason() {
        assert_eq!("modern".parse(), Ok(Profile::Modern));
        assert_eq!("intermediate".parse(), Ok(Profile::Intermediate));
        let why = "old".parse::<Profile>().unwrap_err().to_string();
        assert!(
            why.contains("TLS 1.0") && why.contains("rustls") && why.contains("intermediate"),
            "{why}"
        );
        assert!("custom".parse::<Profile>().unwrap_err().to_string().contains("custom"));
    }

    #[test]
    fn groups_are_written_as_the_registry_names_them() {
        let names = KeyExchangeGroup::ALL.map(|group| serde_json::to_string(&group).unwrap());
        assert_eq!(names.join(" "), r#""X25519MLKEM768" "X25519" "P-256" "P-384""#);
    }
}
