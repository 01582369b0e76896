//! How a cluster is watched: what `kubernetes:` means in the configuration of a cluster.

use std::path::PathBuf;

/// A cluster's API server, and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSource {
    /// How it is reached.
    pub connection: Connection,
    /// What names are read from; `None`: all of [`Resource::ALL`] that the server has.
    pub resources: Option<Vec<Resource>>,
    /// Where they are read; empty for all namespaces.
    pub namespaces: Vec<String>,
    /// The label selector that they must match, in Kubernetes' own syntax.
    pub labels: Option<String>,
    /// Which of them the cluster's routers serve.
    pub choice: Choice,
    /// Whether wildcards are served.
    pub wildcards: bool,
    /// Which router hosts there are.
    pub routers: Routers,
}

/// Which of the objects that ask for names the cluster's routers serve. What is given here must hold; what is not given
/// leaves nothing out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The label selector that their namespaces must match, in Kubernetes' own syntax.
    pub namespace_labels: Option<String>,
    /// Routers, by their names in the status of Routes, of which one must have admitted a Route.
    pub router_names: Vec<String>,
    /// The classes of which an Ingress must be.
    pub ingress_classes: Vec<String>,
    /// Gateways of which one must be a parent of a Gateway API route.
    pub gateways: Vec<GatewayName>,
    /// Classes of which such a Gateway must be; given in place of names.
    pub gateway_classes: Vec<String>,
}

impl Choice {
    /// Whether Gateway API routes are chosen by their Gateways.
    #[must_use]
    pub fn by_gateway(&self) -> bool {
        !self.gateways.is_empty() || !self.gateway_classes.is_empty()
    }
}

/// Where a Gateway stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GatewayName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for GatewayName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How an API server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// By the service account of the pod that signalbox runs in.
    InCluster,
    /// As a kubeconfig file says.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// One of its contexts; `None`: its current one.
        context: Option<String>,
    },
    /// By its address.
    Url {
        /// `https://api.east.example.com:6443`
        url: String,
        /// The file with the bearer token; read again when it is replaced.
        token: Option<PathBuf>,
        /// PEM file with the authorities that must have signed the server's certificate; `None`: the system's.
        ca: Option<PathBuf>,
    },
}

/// A kind of object that names are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    /// `route.openshift.io`
    Routes,
    /// `networking.k8s.io`
    Ingresses,
    /// `gateway.networking.k8s.io`
    TlsRoutes,
    /// `gateway.networking.k8s.io`
    HttpRoutes,
}

impl Resource {
    /// All, with their names in the configuration, which are also those in the API's paths.
    pub const ALL: [(&'static str, Self); 4] = [
        ("routes", Self::Routes),
        ("ingresses", Self::Ingresses),
        ("tlsroutes", Self::TlsRoutes),
        ("httproutes", Self::HttpRoutes),
    ];
}

/// Which pods are routers, and where they are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routers {
    /// Where they run; `None`: both of [`RouterPods::defaults`].
    pub pods: Option<RouterPods>,
    /// Which of a node's addresses is used.
    pub address: AddressType,
    /// The port for `http` listeners; `None`: the pod's.
    pub http: Option<u16>,
    /// The port for `tls` listeners; `None`: the pod's.
    pub https: Option<u16>,
}

/// A set of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterPods {
    /// Their namespace.
    pub namespace: String,
    /// Their label selector.
    pub labels: String,
}

impl KubernetesSource {
    /// Where the routers run: as the configuration says, or in both places where OpenShift may have them.
    #[must_use]
    pub fn router_pods(&self) -> Vec<RouterPods> {
        match &self.routers.pods {
            Some(pods) => vec![pods.clone()],
            None => RouterPods::of(&self.choice.router_names).to_vec(),
        }
    }
}

impl RouterPods {
    /// Where OpenShift 4 and OpenShift 3 run routers of these names, or their default routers. A router is called in the
    /// status of Routes by the name of its `IngressController` (version 4) or `DeploymentConfig` (version 3).
    fn of(names: &[String]) -> [Self; 2] {
        [
            (
                "openshift-ingress",
                "ingresscontroller.operator.openshift.io/deployment-ingresscontroller",
                "default",
            ),
            ("default", "deploymentconfig", "router"),
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

/// Which of a node's addresses is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// `InternalIP`, which a pod knows as its host's.
    #[default]
    Internal,
    /// `ExternalIP`.
    External,
}

impl AddressType {
    /// All, with their names in the configuration.
    pub const ALL: [(&'static str, Self); 2] = [("InternalIP", Self::Internal), ("ExternalIP", Self::External)];
}
