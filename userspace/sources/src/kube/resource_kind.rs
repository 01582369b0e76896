//! Resources that are watched, and their places in the API.

use signalbox_core::discovered::claims::ObjectKind;
use signalbox_core::model::kubernetes::Resource;

/// Resource that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResourceKind {
    Claiming(ObjectKind),
    Pods,
    Nodes,
    Namespaces,
    IngressClasses,
    Gateways,
    /// Secrets with certificates.
    Secrets,
}

impl ResourceKind {
    pub(super) fn of(resource: Resource) -> Self {
        Self::Claiming(match resource {
            Resource::Routes => ObjectKind::Route,
            Resource::Ingresses => ObjectKind::Ingress,
            Resource::TlsRoutes => ObjectKind::TlsRoute,
            Resource::HttpRoutes => ObjectKind::HttpRoute,
        })
    }

    /// Returns the name in paths.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Claiming(ObjectKind::Route) => "routes",
            Self::Claiming(ObjectKind::Ingress) => "ingresses",
            Self::Claiming(ObjectKind::TlsRoute) => "tlsroutes",
            Self::Claiming(ObjectKind::HttpRoute) => "httproutes",
            Self::Pods => "pods",
            Self::Nodes => "nodes",
            Self::Namespaces => "namespaces",
            Self::IngressClasses => "ingressclasses",
            Self::Gateways => "gateways",
            Self::Secrets => "secrets",
        }
    }

    /// Returns the condition on fields by which objects are chosen, for a query.
    pub(super) const fn field_selector(self) -> &'static str {
        match self {
            Self::Secrets => "&fieldSelector=type%3Dkubernetes.io%2Ftls",
            _ => "",
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
            Self::Claiming(ObjectKind::Route) => &["apis/route.openshift.io/v1"],
            // OpenShift 3.11 is Kubernetes 1.11.
            Self::Claiming(ObjectKind::Ingress) => &[
                "apis/networking.k8s.io/v1",
                "apis/networking.k8s.io/v1beta1",
                "apis/extensions/v1beta1",
            ],
            Self::Claiming(ObjectKind::TlsRoute) => &[
                "apis/gateway.networking.k8s.io/v1",
                "apis/gateway.networking.k8s.io/v1alpha3",
                "apis/gateway.networking.k8s.io/v1alpha2",
            ],
            Self::Claiming(ObjectKind::HttpRoute) | Self::Gateways => &[
                "apis/gateway.networking.k8s.io/v1",
                "apis/gateway.networking.k8s.io/v1beta1",
            ],
            Self::IngressClasses => &["apis/networking.k8s.io/v1", "apis/networking.k8s.io/v1beta1"],
            Self::Pods | Self::Nodes | Self::Namespaces | Self::Secrets => &["api/v1"],
        }
    }
}
