//! What is asked of a cluster's objects, and no more of them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::Parent;
use crate::labels::Labels;
use crate::name::Depth;

/// An object that asks for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its identity: another object of the same name has another.
    pub uid: String,
    /// When it was created, as the API server writes it: RFC 3339 in UTC, whose order is that of the text. Who has
    /// none counts as the youngest, or leaving it out would take names from others.
    pub created: Option<String>,
    /// The names that it asks for itself. A Route without any is given names by its routers.
    pub hosts: Vec<String>,
    /// A Route's path, empty for none. `None`: objects of its kind share names by rules of their own.
    pub path: Option<String>,
    /// `wildcardPolicy: Subdomain`: for `www.acme.test`, what is asked for is `*.acme.test`.
    pub subdomain: bool,
    /// Whether TLS is ended by the application, so that no router sees a path.
    pub passthrough: bool,
    /// At least those that [`super::is_read`].
    pub annotations: BTreeMap<String, String>,
    /// Its labels, all of them.
    pub labels: Labels,
    /// What its routers say.
    pub said: Vec<Said>,
    /// The class that an Ingress names.
    pub class: Option<String>,
    /// The Gateways by which a Gateway API route wants to be served.
    pub parents: Vec<Parent>,
    /// The uid of the Ingress that it was made from.
    pub ingress: Option<String>,
}

/// The kinds of objects that ask for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `route.openshift.io`
    Route,
    /// `networking.k8s.io`
    Ingress,
    /// `gateway.networking.k8s.io`
    TlsRoute,
    /// `gateway.networking.k8s.io`
    HttpRoute,
}

impl Kind {
    /// As the API calls it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Route => "Route",
            Self::Ingress => "Ingress",
            Self::TlsRoute => "TLSRoute",
            Self::HttpRoute => "HTTPRoute",
        }
    }

    /// How many labels the star of its wildcards stands for. OpenShift's router matches `[^\.]*` (`wildcardPolicy`),
    /// Kubernetes says of an Ingress that a "wildcard only covers a single DNS label", and the Gateway API that its
    /// wildcards are suffix matches.
    pub(super) const fn depth(self) -> Depth {
        match self {
            Self::Route | Self::Ingress => Depth::One,
            Self::TlsRoute | Self::HttpRoute => Depth::Any,
        }
    }
}

/// What one router says of an object in its status: of a Route a router, of a Gateway API route a Gateway's controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The router's name; empty for others.
    pub router: String,
    /// The name under which it serves a Route; empty where it does not say.
    pub host: String,
    /// Whether it does.
    pub admission: Admission,
}

/// Whether a router serves an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It does not say: there are routers that do not, and it may be about to.
    Unsaid,
    /// It does.
    Admitted,
    /// It does not, and why not.
    Refused(String),
}

impl Object {
    /// As a person knows it: `Route shop/web`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }

    /// When it was created, in seconds of Unix time; 0 where that is not known.
    pub(super) fn created_at(&self) -> u64 {
        let created = self
            .created
            .as_deref()
            .and_then(|text| text.parse::<jiff::Timestamp>().ok());
        created.map_or(0, |at| u64::try_from(at.as_second()).unwrap_or(0))
    }

    /// Older objects come first. Of two Routes that were made in the same second the one with the lesser uid does, as
    /// OpenShift's router has it (`RouteLessThan`); of others the one with the lesser namespace and name, as the Gateway
    /// API has it.
    pub(super) fn age(&self) -> impl Ord + '_ {
        let created = self.created.as_deref();
        let is_route = self.kind == Kind::Route;
        (
            created.is_none(),
            created,
            self.kind,
            is_route.then_some(&self.uid),
            &self.namespace,
            &self.name,
            &self.uid,
        )
    }
}

/// A class of Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressClass {
    /// Its name.
    pub name: String,
    /// Whether it is the class of Ingresses that name none.
    pub is_default: bool,
}

/// A pod that runs a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it runs; `None` until that is decided.
    pub node: Option<String>,
    /// Its node's address, as far as the pod knows it.
    pub host_ip: Option<IpAddr>,
    /// Whether it shares its node's network, so that its ports are the node's.
    pub host_network: bool,
    /// The node's port that leads to its port named `http`.
    pub http: Option<u16>,
    /// The node's port that leads to its port named `https`.
    pub https: Option<u16>,
    /// What its readiness probe says.
    pub ready: bool,
    /// Whether it has ended or is about to: deleted, succeeded or failed.
    pub ending: bool,
}

/// A node and its addresses, its first of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `InternalIP`
    pub internal: Option<IpAddr>,
    /// `ExternalIP`
    pub external: Option<IpAddr>,
}
