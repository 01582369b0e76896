//! API server of a cluster, and the objects that are read from it.

mod shard;

use std::path::PathBuf;

use signalbox_core::model::kubernetes::{
    AddressType, ApiServerAccess, KubernetesSource, Resource, RouterPods, Routers,
};

use super::map::MapDecoder;
use super::node::NodeRef;
use super::report::{Report, quote};
use super::scalar::{optional_value, or_default};
use super::selector;

/// Most namespaces, each of which needs a separate watch; more are better chosen by a label selector over all.
const MAX_NAMESPACES: usize = 256;

const DEFAULT_ROUTERS: Routers = Routers {
    pods: None,
    address: AddressType::Internal,
    http: None,
    https: None,
};

/// Decodes the `kubernetes` key of a cluster.
pub(super) fn source(place: &NodeRef<'_>, report: &mut Report) -> Option<KubernetesSource> {
    let mut map = MapDecoder::open(place, report)?;
    let connection = AccessKeys::take(&mut map);
    let resources = map.take("resources");
    let namespaces = map.take("namespaces");
    let labels = map.take("labels");
    let choice = shard::ShardKeys::take(&mut map);
    let wildcards = map.take("wildcards");
    let certificates = map.take("certificates");
    let routers = map.take("routers");
    let known = map.finish(report);

    let connection = connection.decode(place, known, report);
    let resources = optional_value(resources.as_ref(), |place| self::resources(place, report));
    let namespaces = optional_value(namespaces.as_ref(), |place| self::namespaces(place, report));
    let labels = optional_value(labels.as_ref(), |place| selector::labels(place, report));
    let routers_at = routers.as_ref();
    let routers = or_default(routers_at, DEFAULT_ROUTERS, |place| self::routers(place, report));
    let resources_read = resources.as_ref().and_then(Option::as_deref);
    let own_pods = routers_at.filter(|_| routers.pods.is_some());
    let choice = choice.decode(resources_read, own_pods, report);
    let wildcards = or_default(wildcards.as_ref(), false, |place| place.flag(report));
    let certificates = or_default(certificates.as_ref(), false, |place| place.flag(report));
    Some(KubernetesSource {
        access: connection?,
        resources: resources?,
        namespaces: namespaces?.unwrap_or_default(),
        labels: labels?,
        shard: choice?,
        wildcards,
        certificates,
        routers,
    })
}

/// Keys of the ways to reach the server; only those of one way may be given.
struct AccessKeys<'a> {
    in_cluster: Option<NodeRef<'a>>,
    kubeconfig: Option<NodeRef<'a>>,
    context: Option<NodeRef<'a>>,
    url: Option<NodeRef<'a>>,
    token_file: Option<NodeRef<'a>>,
    ca_file: Option<NodeRef<'a>>,
}

impl<'a> AccessKeys<'a> {
    fn take(map: &mut MapDecoder<'a>) -> Self {
        Self {
            in_cluster: map.take("in_cluster"),
            kubeconfig: map.take("kubeconfig"),
            context: map.take("context"),
            url: map.take("url"),
            token_file: map.take("token_file"),
            ca_file: map.take("ca_file"),
        }
    }

    /// Decodes the connection. `known`: there is no unknown key that could be the missing way.
    fn decode(&self, place: &NodeRef<'_>, known: bool, report: &mut Report) -> Option<ApiServerAccess> {
        let ways = [&self.in_cluster, &self.kubeconfig, &self.url];
        let given = ways.into_iter().flatten().count();
        if given > 1 || (given == 0 && known) {
            let found = if given == 0 {
                "none of them is given"
            } else {
                "more than one is given"
            };
            place.error(
                report,
                format!("an API server is reached by exactly one of `in_cluster`, `kubeconfig` and `url`; {found}"),
            );
        }
        if given == 1 {
            self.check_exclusive(report);
        }
        let file = |place: &Option<NodeRef<'_>>, report: &mut Report| {
            optional_value(place.as_ref(), |place| place.text(report).map(PathBuf::from))
        };
        let token = file(&self.token_file, report);
        let ca = file(&self.ca_file, report);
        let context = optional_value(self.context.as_ref(), |place| place.text(report).map(str::to_owned));
        let kubeconfig = file(&self.kubeconfig, report)?;
        let url = optional_value(self.url.as_ref(), |place| self::url(place, report))?;
        if let Some(path) = kubeconfig {
            let context = context?;
            return Some(ApiServerAccess::Kubeconfig { path, context });
        }
        if let Some(url) = url {
            let (token, ca) = (token?, ca?);
            return Some(ApiServerAccess::Url { url, token, ca });
        }
        let in_cluster = self.in_cluster.as_ref()?;
        if in_cluster.flag(report)? {
            return Some(ApiServerAccess::InCluster);
        }
        in_cluster.error(
            report,
            "`in_cluster` can only be true: give `kubeconfig` or `url` instead",
        );
        None
    }

    /// Reports keys that belong to another way than the one given.
    fn check_exclusive(&self, report: &mut Report) {
        let companions = [
            (&self.context, "context", &self.kubeconfig, "kubeconfig"),
            (&self.token_file, "token_file", &self.url, "url"),
            (&self.ca_file, "ca_file", &self.url, "url"),
        ];
        for (place, key, way, name) in companions {
            if let (Some(place), None) = (place, way) {
                place.error(report, format!("`{key}` needs `{name}`, which is missing"));
            }
        }
    }
}

fn url(place: &NodeRef<'_>, report: &mut Report) -> Option<String> {
    let text = place.text(report)?;
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    // A query, or a name and password, in the URL is always a mistake: the client would misuse them.
    let plain = |rest: &&str| !rest.starts_with(['/', ':']) && !rest.contains(['?', '#', '@']);
    let parsed = text.parse::<http::Uri>();
    if rest.filter(|rest| !rest.is_empty()).is_some_and(|rest| plain(&rest)) && parsed.is_ok() {
        return Some(text.to_owned());
    }
    let shown = quote(text);
    place.error(
        report,
        format!("{shown} is not an API server's address, such as https://api.east.example.com:6443"),
    );
    None
}

fn resources(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<Resource>> {
    distinct(place, "resources", usize::MAX, report, |item, report| {
        item.keyword("a resource", &Resource::ALL, report)
    })
}

fn namespaces(place: &NodeRef<'_>, report: &mut Report) -> Option<Vec<String>> {
    distinct(place, "namespaces", MAX_NAMESPACES, report, selector::namespace)
}

/// Decodes a list of at least one item, all distinct. `what`: the items' name in the plural.
fn distinct<T: PartialEq>(
    place: &NodeRef<'_>,
    what: &str,
    most: usize,
    report: &mut Report,
    read: impl Fn(&NodeRef<'_>, &mut Report) -> Option<T>,
) -> Option<Vec<T>> {
    let mut found = Some(Vec::new());
    let mut none = true;
    for item in place.items(what, most, report)? {
        none = false;
        match (read(&item, report), &mut found) {
            (Some(one), Some(found)) if !found.contains(&one) => found.push(one),
            (Some(_), Some(_)) => item.error(report, "this is given twice"),
            _ => found = None,
        }
    }
    if none {
        place.error(
            report,
            format!("the list of {what} is empty: leave the key out for all of them"),
        );
        return None;
    }
    found
}

fn routers(place: &NodeRef<'_>, report: &mut Report) -> Option<Routers> {
    let mut map = MapDecoder::open(place, report)?;
    let namespace = map.take("namespace");
    let labels = map.take("labels");
    let address = map.take("address");
    let http = map.take("http");
    let https = map.take("https");
    map.finish(report);
    if let (Some(place), None) | (None, Some(place)) = (&namespace, &labels) {
        place.error(
            report,
            "`namespace` and `labels` say together which pods are routers: give both, or neither for OpenShift's own",
        );
    }
    let namespace = namespace.and_then(|place| selector::namespace(&place, report));
    let labels = labels.and_then(|place| selector::labels(&place, report));
    let pods = namespace.zip(labels);
    Some(Routers {
        pods: pods.map(|(namespace, labels)| RouterPods { namespace, labels }),
        address: or_default(address.as_ref(), DEFAULT_ROUTERS.address, |place| {
            place.keyword("a type of address", &AddressType::ALL, report)
        }),
        http: http.and_then(|place| place.port(report)),
        https: https.and_then(|place| place.port(report)),
    })
}
