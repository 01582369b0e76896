//! Application as events describe it, and its record for storage.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::secret::Secret;

/// Key of an application: the plugin publishes no other identity. Written `NAMESPACE/APP`, its cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AppKey {
    /// Namespace of the owner.
    pub namespace: String,
    /// Name of the application in the namespace.
    pub app: String,
}

impl AppKey {
    /// Reads `NAMESPACE/APP`; `None`: the text is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let is_name = |part: &str| (1..=63).contains(&part.len()) && part.bytes().all(allowed);
        let (namespace, app) = text.split_once('/')?;
        (is_name(namespace) && is_name(app)).then(|| Self {
            namespace: namespace.to_owned(),
            app: app.to_owned(),
        })
    }
}

impl fmt::Display for AppKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.app)
    }
}

/// Application. Its JSON is for people and hides secrets; [`Self::to_record`] is for storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Key of the application.
    #[serde(flatten)]
    pub key: AppKey,
    /// Whether the application was announced by a separate event, rather than by one about a part of it.
    #[serde(default)]
    pub announced: bool,
    /// Whether the application is scalable, as announced.
    #[serde(default)]
    pub scalable: Option<bool>,
    /// Whether the application was announced highly available. A second `load_balancer` endpoint shows later changes.
    #[serde(default)]
    pub ha: Option<bool>,
    /// Gear that was reported first, of those that exist: the front end of its node knows this gear by the
    /// application's name, and every other gear by its id.
    #[serde(default)]
    pub head: Option<String>,
    /// Whether the application is stopped: its endpoints get no connections.
    #[serde(default)]
    pub stopped: bool,
    /// Gears that differ from the application: `true` for a gear that is stopped, `false` for one that runs.
    #[serde(default)]
    pub stopped_gears: BTreeMap<String, bool>,
    /// Rotations out that events have asked for and not taken back, with their reasons: gears, and the whole
    /// application by an empty name. Only the store has the active rotations, because operators rotate too.
    #[serde(default)]
    pub rotated_out: BTreeMap<String, String>,
    /// Geographies by gear; the whole application's are under an empty name.
    #[serde(default)]
    pub geographies: BTreeMap<String, BTreeSet<String>>,
    /// Endpoints by address.
    #[serde(default)]
    pub endpoints: BTreeMap<SocketAddr, Endpoint>,
    /// Names, as [`super::parse`] folds them: lower-case where they are host names, otherwise as the event has them.
    #[serde(default)]
    pub aliases: BTreeSet<String>,
    /// Certificates by alias; also of an alias that has not been added yet.
    #[serde(default)]
    pub certificates: BTreeMap<String, Certificate>,
}

/// Endpoint: a gear's port at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Id of the gear; `None` where there is none.
    pub gear: Option<String>,
    /// Name of the port in its cartridge, such as `haproxy-1.4`.
    pub name: Option<String>,
    /// Protocols that the endpoint speaks: `http`, `ws`, `https`, `tls`, others.
    pub protocols: BTreeSet<String>,
    /// Types of the endpoint: `load_balancer`, `web_framework`, others.
    pub types: BTreeSet<String>,
    /// Paths of the node's front end, with the gear's paths that they map to.
    pub mappings: Vec<Mapping>,
}

/// Mapping of a path of a node's front end to a path of the gear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Mapping {
    /// Path asked for at the node.
    pub frontend: String,
    /// Path asked of the gear.
    pub backend: String,
}

/// Certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The certificate and perhaps its chain, PEM.
    pub chain: String,
    /// Private key of the certificate, PEM; `None` where it is not kept.
    #[serde(skip_deserializing)]
    pub private_key: Option<Secret>,
    /// Pass phrase of the private key.
    #[serde(skip_deserializing)]
    pub pass_phrase: Option<Secret>,
}

/// Error of bytes that are not a record. It gives their place and never quotes them: they may be a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of an application is malformed at byte {byte}")]
pub struct RecordError {
    /// Number of the byte where the record stops making sense, from 1.
    pub byte: usize,
}

/// Stored form: the application as people see it, and beside it its secrets.
#[derive(Serialize, Deserialize)]
struct StoredApplication<A> {
    application: A,
    /// Private key and pass phrase by alias.
    secrets: BTreeMap<String, (Option<String>, Option<String>)>,
}

impl Application {
    /// Application of which only the key is known yet.
    #[must_use]
    pub const fn new(key: AppKey) -> Self {
        Self {
            key,
            announced: false,
            scalable: None,
            ha: None,
            head: None,
            stopped: false,
            stopped_gears: BTreeMap::new(),
            rotated_out: BTreeMap::new(),
            geographies: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            aliases: BTreeSet::new(),
            certificates: BTreeMap::new(),
        }
    }

    /// Serializes for durable storage, **private keys and pass phrases included**: only signalbox may read it there.
    #[must_use]
    pub fn to_record(&self) -> Vec<u8> {
        let reveal = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.reveal().to_owned());
        let secrets = self.certificates.iter().map(|(alias, certificate)| {
            let Certificate {
                private_key,
                pass_phrase,
                ..
            } = certificate;
            (alias.clone(), (reveal(private_key), reveal(pass_phrase)))
        });
        let record = StoredApplication {
            application: self,
            secrets: secrets.collect(),
        };
        serde_json::to_vec(&record).expect("strings, numbers and maps by string: JSON holds them all")
    }

    /// Reads the bytes that [`Self::to_record`] wrote.
    ///
    /// # Errors
    /// The bytes are not a record of this version.
    pub fn from_record(bytes: &[u8]) -> Result<Self, RecordError> {
        let StoredApplication {
            mut application,
            mut secrets,
        } = serde_json::from_slice::<StoredApplication<Self>>(bytes)
            .map_err(|error| RecordError { byte: error.column() })?;
        for (alias, certificate) in &mut application.certificates {
            let (private_key, pass_phrase) = secrets.remove(alias).unwrap_or_default();
            certificate.private_key = private_key.as_deref().map(Secret::new);
            certificate.pass_phrase = pass_phrase.as_deref().map(Secret::new);
        }
        Ok(application)
    }

    /// Whether nothing would be lost by dropping the application.
    #[must_use]
    pub fn is_disposable(&self) -> bool {
        !self.announced
            && self.endpoints.is_empty()
            && self.aliases.is_empty()
            && self.certificates.is_empty()
            && self.geographies.is_empty()
            && !self.stopped
            && self.stopped_gears.is_empty()
            && self.rotated_out.is_empty()
    }

    /// Whether an endpoint's gear is stopped.
    #[must_use]
    pub fn is_stopped(&self, endpoint: &Endpoint) -> bool {
        let said = endpoint.gear.as_ref().and_then(|gear| self.stopped_gears.get(gear));
        said.copied().unwrap_or(self.stopped)
    }

    /// Geographies of an endpoint: its gear's and the application's.
    pub fn geographies_of(&self, endpoint: &Endpoint) -> BTreeSet<&str> {
        let of = |gear: &str| self.geographies.get(gear).into_iter().flatten();
        let own = endpoint.gear.as_deref().map(of);
        of("").chain(own.into_iter().flatten()).map(String::as_str).collect()
    }

    /// Gears that have an endpoint, once for each endpoint.
    pub fn gears(&self) -> impl Iterator<Item = &String> {
        self.endpoints.values().filter_map(|endpoint| endpoint.gear.as_ref())
    }
}
