//! Watching of a cluster: the meaning of `kubernetes:` in the configuration of a cluster.

use serde::Serialize;
use std::path::PathBuf;

/// API server of a cluster, and the objects that signalbox reads from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KubernetesSource {
    /// Connection to the API server.
    pub access: ApiServerAccess,
    /// Resources that names are read from; `None`: all of [`Resource::ALL`] that the server has.
    pub resources: Option<Vec<Resource>>,
    /// Namespaces that are read; empty for all.
    pub namespaces: Vec<String>,
    /// Label selector that the objects must match, in Kubernetes' own syntax.
    pub labels: Option<String>,
    /// Choice of the objects that the cluster's routers serve.
    pub shard: ShardFilter,
    /// Whether wildcards are served.
    pub wildcards: bool,
    /// Whether certificates are read, so that the balancer itself ends TLS that would end at the routers.
    pub certificates: bool,
    /// Router pods of the cluster.
    pub routers: Routers,
}

/// Choice, among the objects that ask for names, of those that the cluster's routers serve. Each given condition must
/// hold; an absent one leaves nothing out, except that of routers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShardFilter {
    /// Label selector that the objects' namespaces must match, in Kubernetes' own syntax.
    pub namespace_labels: Option<String>,
    /// Routers, one of which must have admitted a Route.
    pub routers: RouterNames,
    /// Classes, one of which an Ingress must have.
    pub ingress_classes: Vec<String>,
    /// Gateways, one of which must be a parent of a Gateway API route.
    pub gateways: Vec<GatewayName>,
    /// Classes, one of which such a Gateway must have; given in place of names.
    pub gateway_classes: Vec<String>,
}

impl ShardFilter {
    /// Whether Gateway API routes are chosen by their Gateways.
    #[must_use]
    pub fn filters_gateways(&self) -> bool {
        !self.gateways.is_empty() || !self.gateway_classes.is_empty()
    }
}

/// Routers that count, by their names in the status of Routes: those of an `IngressController` (OpenShift 4) or of a
/// `DeploymentConfig` (OpenShift 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterNames {
    /// OpenShift's default routers, and Routes that no router at all has written about.
    #[default]
    Default,
    /// Routers that the configuration names.
    Named(Vec<String>),
    /// Every router.
    Any,
}

impl RouterNames {
    /// Names of the default routers of OpenShift 4 and 3.
    pub const DEFAULT: [&'static str; 2] = ["default", "router"];

    /// Whether a router of this name counts.
    #[must_use]
    pub fn counts(&self, name: &str) -> bool {
        match self {
            Self::Default => Self::DEFAULT.contains(&name),
            Self::Named(names) => names.iter().any(|named| named == name),
            Self::Any => true,
        }
    }

    /// Names that the configuration gives.
    #[must_use]
    pub fn named(&self) -> &[String] {
        match self {
            Self::Named(names) => names,
            Self::Default | Self::Any => &[],
        }
    }
}

/// Namespace and name of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct GatewayName {
    /// Namespace of the Gateway.
    pub namespace: String,
    /// Name of the Gateway.
    pub name: String,
}

impl std::fmt::Display for GatewayName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Way to connect to an API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApiServerAccess {
    /// Service account of the pod that signalbox runs in.
    InCluster,
    /// Kubeconfig file.
    Kubeconfig {
        /// Path of the file.
        path: PathBuf,
        /// Context in the file; `None`: its current one.
        context: Option<String>,
    },
    /// Address of the server.
    Url {
        /// URL such as `https://api.east.example.com:6443`.
        url: String,
        /// File with the bearer token; read again when it is replaced.
        token: Option<PathBuf>,
        /// PEM file with the authorities that must have signed the server's certificate; `None`: the system's.
        ca: Option<PathBuf>,
    },
}

/// Resource: a kind of object that names are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Routes of `route.openshift.io`.
    Routes,
    /// Ingresses of `networking.k8s.io`.
    Ingresses,
    /// TLSRoutes of `gateway.networking.k8s.io`.
    TlsRoutes,
    /// HTTPRoutes of `gateway.networking.k8s.io`.
    HttpRoutes,
}

impl Resource {
    /// All resources, with their names in the configuration, which are also those in the API's paths.
    pub const ALL: [(&'static str, Self); 4] = [
        ("routes", Self::Routes),
        ("ingresses", Self::Ingresses),
        ("tlsroutes", Self::TlsRoutes),
        ("httproutes", Self::HttpRoutes),
    ];
}

/// Router pods, and the addresses at which they are reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Routers {
    /// Namespace and labels of the pods; `None`: both of [`RouterPods::default_locations`].
    pub pods: Option<RouterPods>,
    /// Type of the node address that is used.
    pub address: AddressType,
    /// Port for `http` listeners; `None`: the pod's own.
    pub http: Option<u16>,
    /// Port for `tls` listeners; `None`: the pod's own.
    pub https: Option<u16>,
}

/// Set of pods, chosen by namespace and labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouterPods {
    /// Namespace of the pods.
    pub namespace: String,
    /// Label selector of the pods.
    pub labels: String,
}

impl KubernetesSource {
    /// Sets of pods that run the routers: the configured one, or both that OpenShift may have.
    #[must_use]
    pub fn router_pods(&self) -> Vec<RouterPods> {
        match &self.routers.pods {
            Some(pods) => vec![pods.clone()],
            None => RouterPods::default_locations(self.shard.routers.named()).to_vec(),
        }
    }
}

impl RouterPods {
    /// Sets of pods in which OpenShift 4 and OpenShift 3 run routers of these names, or their default routers. The
    /// status of Routes names a router after its `IngressController` (version 4) or `DeploymentConfig` (version 3).
    fn default_locations(names: &[String]) -> [Self; 2] {
        let [of_4, of_3] = RouterNames::DEFAULT;
        [
            (
                "openshift-ingress",
                "ingresscontroller.operator.openshift.io/deployment-ingresscontroller",
                of_4,
            ),
            ("default", "deploymentconfig", of_3),
        ]
        .map(|(namespace, key, by_default)| Self {
            namespace: namespace.to_owned(),
            labels: match names {
                [] => format!("{key}={by_default}"),
                [name] => format!("{key}={name}"),
                names => format!("{key} in ({})", names.join(", ")),
            },
        })
    }
}

/// Type of the node address that is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressType {
    /// `InternalIP`, which a pod knows as its host's.
    #[default]
    Internal,
    /// `ExternalIP`.
    External,
}

impl AddressType {
    /// All types, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("InternalIP", Self::Internal), ("ExternalIP", Self::External)];
}
