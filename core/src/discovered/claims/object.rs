//! The fields of a cluster's objects that decide on names and hosts, and no others.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::discovered::discovery::{CertificateOrigin, HeaderAction};
use crate::model::kubernetes::GatewayName;
use crate::model::labels::Labels;
use crate::wire::hostname::{HostnamePattern, WildcardDepth};

/// An object that asks for names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Uid of the object: another object of the same name has another.
    pub uid: String,
    /// Creation time as the API server writes it: RFC 3339 in UTC, which sorts as text. An object without one counts as
    /// the youngest, so that it takes no name from others.
    pub created: Option<String>,
    /// Names that the object asks for itself. A Route without any is given names by its routers.
    pub hostnames: Vec<String>,
    /// Path of a Route, empty for none. `None`: objects of this kind share names by other rules.
    pub path: Option<String>,
    /// Whether `wildcardPolicy` is `Subdomain`: then a Route for `www.acme.test` asks for `*.acme.test`.
    pub subdomain: bool,
    /// Whether TLS ends at the application, so that no router sees a path.
    pub passthrough: bool,
    /// Certificates that routers use for the object's names, where TLS ends at them.
    pub certificates: Vec<NamedCertificate>,
    /// Whether TLS of names without one of [`Self::certificates`] ends at the routers, too: with their own.
    pub ends_tls: bool,
    /// Whether servers get plain HTTP where TLS ends at the routers: termination `edge`.
    pub is_edge: bool,
    /// Treatment of plain HTTP, as a Route writes it (`spec.tls.insecureEdgeTerminationPolicy`).
    pub insecure: Option<String>,
    /// Annotations, at least those for which [`super::is_known_annotation`] holds.
    pub annotations: BTreeMap<String, String>,
    /// Changes of fields that a Route wants (`spec.httpHeaders.actions`).
    pub header_actions: HeaderActions,
    /// Labels of the object, all of them.
    pub labels: Labels,
    /// Status entries that routers have written.
    pub router_statuses: Vec<RouterStatus>,
    /// Class that an Ingress names.
    pub class: Option<String>,
    /// Gateways by which a Gateway API route wants to be served.
    pub parents: Vec<Parent>,
    /// Uid of the Ingress that a Route was made from.
    pub ingress: Option<String>,
}

/// Changes of fields, as a Route has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderActions {
    /// Changes of the requests that servers get.
    pub request: Vec<HeaderAction>,
    /// Changes of the answers that clients get.
    pub response: Vec<HeaderAction>,
}

/// Certificate of an object, by its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertificate {
    /// Names as the object writes them; empty for all of the object's.
    pub hostnames: Vec<String>,
    /// Name of a Secret in the object's namespace; `None`: the object itself holds the certificate.
    pub secret: Option<String>,
}

/// Kinds of objects that ask for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Route of `route.openshift.io`.
    Route,
    /// Ingress of `networking.k8s.io`.
    Ingress,
    /// TLSRoute of `gateway.networking.k8s.io`.
    TlsRoute,
    /// HTTPRoute of `gateway.networking.k8s.io`.
    HttpRoute,
}

impl ObjectKind {
    /// Name of the kind in the Kubernetes API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Route => "Route",
            Self::Ingress => "Ingress",
            Self::TlsRoute => "TLSRoute",
            Self::HttpRoute => "HTTPRoute",
        }
    }

    /// Number of labels that the star of a wildcard of this kind stands for. OpenShift's router matches `[^\.]*`
    /// (`wildcardPolicy`), Kubernetes says of an Ingress that a "wildcard only covers a single DNS label", and the
    /// Gateway API that its wildcards are suffix matches.
    pub(super) const fn depth(self) -> WildcardDepth {
        match self {
            Self::Route | Self::Ingress => WildcardDepth::One,
            Self::TlsRoute | Self::HttpRoute => WildcardDepth::Any,
        }
    }
}

/// Status entry of an object: of a Route by a router, of a Gateway API route by a Gateway's controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterStatus {
    /// Name of the router that wrote the entry; empty for Gateway controllers.
    pub router: String,
    /// Name under which the router serves a Route; empty where the entry does not say.
    pub hostname: String,
    /// Whether the router serves the object.
    pub admission: Admission,
}

/// Whether a router serves an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The status says neither yes nor no: some routers never write it, others may be about to.
    Unknown,
    /// The router serves the object.
    Admitted,
    /// The router does not serve the object, for this reason.
    Refused(String),
}

impl Object {
    /// Kind, namespace and name, as a person knows the object: `Route shop/web`.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{} {}/{}", self.kind.as_str(), self.namespace, self.name)
    }

    /// Whether TLS of the object's names ends after the routers, at the application.
    pub(super) fn passes_tls(&self) -> bool {
        self.passthrough || self.kind == ObjectKind::TlsRoute
    }

    /// Certificate that routers use for one of the object's names.
    pub(super) fn certificate(&self, hostname: &HostnamePattern) -> Option<CertificateOrigin> {
        let is_for = |certificate: &&NamedCertificate| {
            let of_all = certificate.hostnames.is_empty();
            let mut names = certificate.hostnames.iter();
            of_all || names.any(|name| HostnamePattern::parse(name).is_ok_and(|name| name == *hostname))
        };
        let certificate = self.certificates.iter().find(is_for)?;
        Some(CertificateOrigin {
            namespace: self.namespace.clone(),
            name: certificate.secret.clone().unwrap_or_else(|| self.name.clone()),
            is_secret: certificate.secret.is_some(),
        })
    }

    /// Creation time in seconds of Unix time; 0 where the object has none.
    pub(super) fn created_at(&self) -> u64 {
        let created = self
            .created
            .as_deref()
            .and_then(|text| text.parse::<jiff::Timestamp>().ok());
        created.map_or(0, |at| u64::try_from(at.as_second()).unwrap_or(0))
    }

    /// Sort key by age, oldest first. Of two Routes made in the same second the one with the lesser uid comes first, as
    /// in OpenShift's router (`RouteLessThan`); of other kinds the one with the lesser namespace and name, as in the
    /// Gateway API.
    pub(super) fn age_order(&self) -> impl Ord + '_ {
        let created = self.created.as_deref();
        let is_route = self.kind == ObjectKind::Route;
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

/// IngressClass: a class of Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressClass {
    /// Name of the class.
    pub name: String,
    /// Whether Ingresses that name no class have this one.
    pub is_default: bool,
}

/// A pod that runs a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Node that the pod runs on; `None` until it is scheduled.
    pub node: Option<String>,
    /// Address of the node, if the pod's status has it.
    pub host_ip: Option<IpAddr>,
    /// Whether the pod shares its node's network, so that its ports are the node's.
    pub host_network: bool,
    /// Port of the node that leads to the pod's port named `http`.
    pub http: Option<u16>,
    /// Port of the node that leads to the pod's port named `https`.
    pub https: Option<u16>,
    /// Whether the pod's readiness probe succeeds.
    pub ready: bool,
    /// Whether the pod has ended or is about to: deleted, succeeded or failed.
    pub terminating: bool,
}

/// Node with its first address of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// First address of type `InternalIP`.
    pub internal: Option<IpAddr>,
    /// First address of type `ExternalIP`.
    pub external: Option<IpAddr>,
}

/// Gateway by which a route wants to be served: an entry of `parentRefs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Namespace and name of the Gateway.
    pub gateway: GatewayName,
    /// Restricts the entry to the listener of this name.
    pub section_name: Option<String>,
    /// Restricts the entry to the listeners of this port.
    pub port: Option<u16>,
    /// Answer of the Gateway's controller to this entry.
    pub admission: Admission,
}

/// Names that an object asks the cluster's routers to serve.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RequestedNames<'a> {
    /// Names, as the object writes them.
    pub(super) names: Vec<&'a str>,
    /// Names that the routers do not serve for the object, each with the reason.
    pub(super) unserved: Vec<(&'a str, String)>,
}

impl<'a> RequestedNames<'a> {
    /// All names that an object itself asks for.
    pub(super) fn all(object: &'a Object) -> Self {
        Self {
            names: object.hostnames.iter().map(String::as_str).collect(),
            unserved: Vec::new(),
        }
    }
}
