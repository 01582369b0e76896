//! What is known of one application, and how it is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::secret::Secret;

/// Which application: the plugin publishes no other identity. Written `NAMESPACE/APP`, which is its cluster's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AppKey {
    /// The owner's namespace.
    pub namespace: String,
    /// Its name there.
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

/// An application. Its JSON is for people: secrets are hidden in it. [`Self::record`] is for storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Application {
    /// Which one.
    #[serde(flatten)]
    pub key: AppKey,
    /// Whether it was announced by an event of its own, rather than by what belongs to it.
    #[serde(default)]
    pub announced: bool,
    /// As announced.
    #[serde(default)]
    pub scalable: Option<bool>,
    /// As announced, and never corrected: that it has become so shows in a second `load_balancer` endpoint.
    #[serde(default)]
    pub ha: Option<bool>,
    /// The gear that was told of first, of those that are there: a node's front end knows it by the application's name, and
    /// every other gear by its id.
    #[serde(default)]
    pub head: Option<String>,
    /// Whether the application is stopped: its endpoints get no connections.
    #[serde(default)]
    pub stopped: bool,
    /// Gears that differ from the application: `true` for a gear that is stopped, `false` for one that runs.
    #[serde(default)]
    pub stopped_gears: BTreeMap<String, bool>,
    /// What events have taken out of rotation, and not in again, with their reasons: gears, and the whole application by an
    /// empty name. A record of what was said; the store has what is in force.
    #[serde(default)]
    pub rotated_out: BTreeMap<String, String>,
    /// Geographies by gear; those of the whole application have an empty name in the gear's place.
    #[serde(default)]
    pub geographies: BTreeMap<String, BTreeSet<String>>,
    /// Where it can be reached.
    #[serde(default)]
    pub endpoints: BTreeMap<SocketAddr, Endpoint>,
    /// Its names, as [`super::parse`] folds them: lower-case where they are host names, otherwise as they came.
    #[serde(default)]
    pub aliases: BTreeSet<String>,
    /// By alias; also of one that has not been added yet.
    #[serde(default)]
    pub certificates: BTreeMap<String, Certificate>,
}

/// What is at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The gear; `None` where there is none.
    pub gear: Option<String>,
    /// The port's name in its cartridge, such as `haproxy-1.4`.
    pub name: Option<String>,
    /// What it speaks: `http`, `ws`, `https`, `tls`, others.
    pub protocols: BTreeSet<String>,
    /// What it is: `load_balancer`, `web_framework`, others.
    pub types: BTreeSet<String>,
    /// Paths of the node's front end, and what they are in the gear.
    pub mappings: Vec<Mapping>,
}

/// A path of a node's front end and what it is in the gear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// Asked for at the node.
    pub frontend: String,
    /// Asked of the gear.
    pub backend: String,
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The certificate and perhaps its chain, PEM.
    pub chain: String,
    /// Its private key, PEM; `None` where it is not kept.
    #[serde(skip_deserializing)]
    pub private_key: Option<Secret>,
    /// What the key is locked with.
    #[serde(skip_deserializing)]
    pub pass_phrase: Option<Secret>,
}

/// Why a record is none of ours. It says where, never what is there: that may be a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of an application makes no sense at byte {byte}")]
pub struct BadRecord {
    /// Where it stops making sense, from 1.
    pub byte: usize,
}

/// As stored: what people see, and beside it what they do not.
#[derive(Serialize, Deserialize)]
struct Record<A> {
    application: A,
    /// By alias: private key, pass phrase.
    secrets: BTreeMap<String, (Option<String>, Option<String>)>,
}

impl Application {
    /// One of which nothing is known yet.
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

    /// For durable storage, **private keys and pass phrases included**: where it is kept, only signalbox may read.
    #[must_use]
    pub fn record(&self) -> Vec<u8> {
        let reveal = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.reveal().to_owned());
        let secrets = self.certificates.iter().map(|(alias, certificate)| {
            let Certificate {
                private_key,
                pass_phrase,
                ..
            } = certificate;
            (alias.clone(), (reveal(private_key), reveal(pass_phrase)))
        });
        let record = Record {
            application: self,
            secrets: secrets.collect(),
        };
        serde_json::to_vec(&record).expect("strings, numbers and maps by string: JSON holds them all")
    }

    /// What [`Self::record`] wrote.
    ///
    /// # Errors
    /// It is not a record of this version.
    pub fn from_record(bytes: &[u8]) -> Result<Self, BadRecord> {
        let Record {
            mut application,
            mut secrets,
        } = serde_json::from_slice::<Record<Self>>(bytes).map_err(|error| BadRecord { byte: error.column() })?;
        for (alias, certificate) in &mut application.certificates {
            let (private_key, pass_phrase) = secrets.remove(alias).unwrap_or_default();
            certificate.private_key = private_key.as_deref().map(Secret::new);
            certificate.pass_phrase = pass_phrase.as_deref().map(Secret::new);
        }
        Ok(application)
    }

    /// Whether nothing would be lost with it.
    #[must_use]
    pub fn is_debris(&self) -> bool {
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

    /// The geographies of an endpoint: its gear's and the application's.
    pub fn geographies_of(&self, endpoint: &Endpoint) -> BTreeSet<&str> {
        let of = |gear: &str| self.geographies.get(gear).into_iter().flatten();
        let own = endpoint.gear.as_deref().map(of);
        of("").chain(own.into_iter().flatten()).map(String::as_str).collect()
    }

    /// The gears that have an endpoint, once for each endpoint.
    pub fn gears(&self) -> impl Iterator<Item = &String> {
        self.endpoints.values().filter_map(|endpoint| endpoint.gear.as_ref())
    }
}
