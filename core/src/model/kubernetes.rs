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
    /// Whether wildcards are served.
    pub wildcards: bool,
    /// Which router hosts there are.
    pub routers: Routers,
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

impl RouterPods {
    /// Where OpenShift 4 and OpenShift 3 run their default routers.
    #[must_use]
    pub fn defaults() -> [Self; 2] {
        [
            (
                "openshift-ingress",
                "ingresscontroller.operator.openshift.io/deployment-ingresscontroller=default",
            ),
            ("default", "deploymentconfig=router"),
        ]
        .map(|(namespace, labels)| Self {
            namespace: namespace.to_owned(),
            labels: labels.to_owned(),
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
