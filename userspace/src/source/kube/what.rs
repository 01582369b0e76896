//! Resources that are watched, and their places in the API.

use signalbox_core::claims::Kind;
use signalbox_core::model::kubernetes::Resource;

/// Resource that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Names(Kind),
    Pods,
    Nodes,
    Namespaces,
    IngressClasses,
    Gateways,
}

impl What {
    pub(super) fn of(resource: Resource) -> Self {
        Self::Names(match resource {
            Resource::Routes => Kind::Route,
            Resource::Ingresses => Kind::Ingress,
            Resource::TlsRoutes => Kind::TlsRoute,
            Resource::HttpRoutes => Kind::HttpRoute,
        })
    }

    /// Returns the name in paths.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Names(Kind::Route) => "routes",
            Self::Names(Kind::Ingress) => "ingresses",
            Self::Names(Kind::TlsRoute) => "tlsroutes",
            Self::Names(Kind::HttpRoute) => "httproutes",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::IngressClasses => "ingressclasses",
            Self::Gateways => "gateways",
        }
    }

    /// Returns the name in roles, for messages to the cluster's administrator.
    pub(super) fn in_roles(self) -> String {
        match self.homes()[0] {
            "api/v1" => self.plural().to_owned(),
            home => {
                let group = home.trim_start_matches("apis/");
                let group = group.rsplit_once('/').map_or(group, |(group, _)| group);
                format!("{}.{group}", self.plural())
            }
        }
    }

    /// Returns the groups and versions that have the resource, the best first. Fields that are read are alike in all
    /// of them.
    pub(super) const fn homes(self) -> &'static [&'static str] {
        match self {
            Self::Names(Kind::Route) => &["apis/route.openshift.io/v1"],
            // OpenShift 3.11 is Kubernetes 1.11.
            Self::Names(Kind::Ingress) => &[
                "apis/networking.k8s.io/v1",
                "apis/networking.k8s.io/v1beta1",
                "apis/extensions/v1beta1",
            ],
            Self::Names(Kind::TlsRoute) => &[
                "apis/gateway.networking.k8s.io/v1",
                "apis/gateway.networking.k8s.io/v1alpha3",
                "apis/gateway.networking.k8s.io/v1alpha2",
            ],
            Self::Names(Kind::HttpRoute) | Self::Gateways => &[
                "apis/gateway.networking.k8s.io/v1",
                "apis/gateway.networking.k8s.io/v1beta1",
            ],
            Self::IngressClasses => &["apis/networking.k8s.io/v1", "apis/networking.k8s.io/v1beta1"],
            Self::Pods | Self::Nodes | Self::Namespaces => &["api/v1"],
        }
    }
}
