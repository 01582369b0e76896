//! Nodes that the balancers run on.

use std::net::IpAddr;

use anyhow::bail;
use serde_json::{Value, json};

use super::super::options::HaConfigArgs;

/// Nodes that `ha.nodes` has room for.
const MAX_NODES: usize = 8;
/// The label selector that a DaemonSet was made with.
pub(super) const SELECTOR: &str = "signalbox.io/selector";

/// Where the balancers run.
pub(super) struct Placement {
    /// Label selector, for the API.
    pub(super) selector: String,
    /// The affinity that pods get in place of theirs; none if they stay where they are.
    pub(super) affinity: Option<Value>,
}

impl Placement {
    pub(super) fn of_options(args: &HaConfigArgs) -> anyhow::Result<Self> {
        Ok(Self {
            selector: args.node_selector(),
            affinity: Some(affinity(args)?),
        })
    }
}

/// The nodes of the options, or those that the balancers of a DaemonSet run on already.
pub(super) fn placement(args: &HaConfigArgs, found: Option<&Value>) -> anyhow::Result<Placement> {
    let wanted = Placement::of_options(args)?;
    let Some(found) = found else {
        return Ok(wanted);
    };
    let pod = &found["spec"]["template"]["spec"];
    let stay = |selector| Placement {
        selector,
        affinity: None,
    };
    if wanted.affinity.as_ref() == Some(&pod["affinity"]) && pod["nodeSelector"].is_null() {
        return Ok(stay(wanted.selector));
    }
    let labels: Vec<String> = pod["nodeSelector"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let noted = found["metadata"]
        .get("annotations")
        .and_then(|all| all[SELECTOR].as_str());
    let current = match noted {
        Some(noted) => Some(noted.to_owned()),
        None => pod["affinity"].is_null().then(|| labels.join(",")),
    };
    match current {
        Some(current) if args.selector.is_empty() => Ok(stay(current)),
        _ if !args.selector.is_empty() && args.replace => Ok(wanted),
        current => bail!(
            "balancers run on other nodes ({}): --selector with --replace moves them to the nodes that it names",
            current.unwrap_or_else(|| format!("affinity {}", pod["affinity"]))
        ),
    }
}

/// Options with the nodes that the selector matches, unless `--nodes` names them.
pub(super) fn with_nodes(
    args: &HaConfigArgs,
    nodes: Vec<(String, IpAddr)>,
    selector: &str,
) -> anyhow::Result<HaConfigArgs> {
    if nodes.is_empty() {
        bail!("no node has the labels {selector}: `kubectl label node NAME {selector}`, or --selector");
    }
    if let Some(replicas) = args.replicas.filter(|replicas| *replicas as usize != nodes.len()) {
        let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
        bail!(
            "--replicas={replicas}, but {} nodes have the labels {selector}: {}. Addresses are on each node that has them",
            nodes.len(),
            names.join(", ")
        );
    }
    let mut args = args.clone();
    if args.nodes.is_none() {
        if nodes.len() > MAX_NODES {
            bail!(
                "{} nodes have the labels {selector}, and at most {MAX_NODES} share addresses",
                nodes.len()
            );
        }
        let nodes: Vec<String> = nodes
            .into_iter()
            .map(|(name, address)| format!("{name}={address}"))
            .collect();
        args.nodes = Some(nodes.join(","));
    }
    if args.sync.is_none() {
        args.sync = Some(args.named_nodes()?.len() > 1);
    }
    Ok(args)
}

/// Affinity for the nodes of a selector.
fn affinity(args: &HaConfigArgs) -> anyhow::Result<Value> {
    let selector = args.selected()?;
    let expressions = selector.expressions().map(|(key, operator, values)| {
        if values.is_empty() {
            json!({ "key": key, "operator": operator })
        } else {
            json!({ "key": key, "operator": operator, "values": values })
        }
    });
    let terms = json!([{ "matchExpressions": expressions.collect::<Vec<_>>() }]);
    Ok(json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(selector: &[&str], replace: bool) -> HaConfigArgs {
        HaConfigArgs {
            selector: selector.iter().map(|text| (*text).to_owned()).collect(),
            replace,
            ..HaConfigArgs::default()
        }
    }

    fn set(pod: &Value) -> Value {
        json!({ "metadata": {}, "spec": { "template": { "spec": pod } } })
    }

    #[test]
    fn balancers_keep_their_nodes_unless_replace_names_other_nodes() {
        let infra = set(&json!({ "nodeSelector": { "infra": "", "zone": "a" } }));
        let (named, own) = (["region=west"], args(&[], false));
        for replace in [false, true] {
            let placed = placement(&args(&[], replace), Some(&infra)).unwrap();
            assert_eq!((placed.selector.as_str(), placed.affinity), ("infra=,zone=a", None));
        }
        let Err(refused) = placement(&args(&named, false), Some(&infra)) else {
            panic!("balancers are moved");
        };
        assert!(refused.to_string().contains("(infra=,zone=a)"), "{refused}");
        let moved = placement(&args(&named, true), Some(&infra)).unwrap();
        assert_eq!(
            (moved.selector.as_str(), moved.affinity.is_some()),
            ("region=west", true)
        );

        // Those that the command has made itself: by the same selector, and without one.
        let mut made = set(&json!({ "affinity": affinity(&args(&named, false)).unwrap() }));
        assert!(placement(&args(&named, false), Some(&made)).unwrap().affinity.is_none());
        assert!(
            placement(&own, Some(&made)).is_err(),
            "nothing says which nodes these are"
        );
        made["metadata"]["annotations"][SELECTOR] = "region=west".into();
        assert_eq!(placement(&own, Some(&made)).unwrap().selector, "region=west");
    }
}
