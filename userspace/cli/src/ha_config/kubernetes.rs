//! `-o kubernetes`: the packaged manifests with virtual addresses, and the section `ha` in the cluster's configuration.
//! Objects that the cluster has are changed where they must be, and not replaced by the packaged ones.

mod balancers;
mod certificates;
mod client;
mod nodes;
mod objects;

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::options::HaConfigArgs;
use super::section;
use balancers::BalancersChange;
use client::Client;
use nodes::Placement;
use objects::{CONFIGURATION, FILE, NAME};
use signalbox_config as config;

/// The objects for a cluster that has none of them, without asking any.
pub(super) fn show(args: &HaConfigArgs, section: &Value) -> anyhow::Result<String> {
    let openshift = args.openshift.unwrap_or_else(|| args.routers.is_none());
    let text = section::put(&configuration(args, openshift)?, section)?;
    check(&text)?;
    let mut objects = objects::of_new_cluster(args, openshift)?;
    objects.push(objects::config_map(args, &text));
    objects.push(balancers::new(
        &change(args, section, Placement::of_options(args)?),
        openshift,
    )?);
    objects::yaml(&objects)
}

fn change<'a>(args: &'a HaConfigArgs, section: &'a Value, placement: Placement) -> BalancersChange<'a> {
    BalancersChange {
        args,
        section,
        placement,
    }
}

/// Adds the section to the cluster's configuration, and the supervisors to its balancers, which are made if there are
/// none.
pub(super) fn create(args: &HaConfigArgs) -> anyhow::Result<ExitCode> {
    let client = Client::find(args.namespace())?;
    let found = client.get("daemonset", NAME)?;
    let placement = nodes::placement(args, found.as_ref())?;
    let named = nodes::with_nodes(args, client.nodes(&placement.selector)?, &placement.selector)?;
    let (wanted, _) = section::build(&named)?;
    let change = change(&named, &wanted, placement);
    match found {
        None => create_balancers(&client, &change),
        Some(found) => change_balancers(&client, &change, &found),
    }
}

fn create_balancers(client: &Client, change: &BalancersChange<'_>) -> anyhow::Result<ExitCode> {
    let args = change.args;
    let openshift = match args.openshift {
        Some(openshift) => openshift,
        None => client.is_openshift()?,
    };
    let balancers = balancers::new(change, openshift)?;
    let edit = ConfigurationEdit::prepare(client, change, || configuration(args, openshift))?;
    client.apply(&objects::of_new_cluster(args, openshift)?)?;
    certificates::put(client, args)?;
    edit.apply(client, args)?;
    client.apply(&[balancers])?;
    Ok(ExitCode::SUCCESS)
}

fn change_balancers(client: &Client, change: &BalancersChange<'_>, found: &Value) -> anyhow::Result<ExitCode> {
    let edit = ConfigurationEdit::prepare(client, change, || {
        bail!("there is no ConfigMap {NAME} beside its DaemonSet")
    })?;
    // Asked first: a refusal by the server must not leave half of the change.
    replace_balancers(change, client, found, Client::try_replace)?;
    certificates::put(client, change.args)?;
    edit.apply(client, change.args)?;
    if balancers::changed(change, found)? == *found {
        println!("daemonset.apps/{NAME} unchanged");
        return Ok(ExitCode::SUCCESS);
    }
    replace_balancers(change, client, found, Client::replace)?;
    Ok(ExitCode::SUCCESS)
}

/// Replaces the DaemonSet. Its status may change at any time, and then the server refuses an older version.
fn replace_balancers(
    change: &BalancersChange<'_>,
    client: &Client,
    found: &Value,
    replace: impl Fn(&Client, &Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    const MAX_TRIES: u32 = 5;
    let mut latest = found.clone();
    for _ in 1..MAX_TRIES {
        match replace(client, &balancers::changed(change, &latest)?) {
            Err(error) if error.to_string().contains("Conflict") => {}
            done => return done,
        }
        latest = client.get("daemonset", NAME)?.context("the DaemonSet is gone")?;
        if latest["spec"] != found["spec"] {
            bail!("somebody else has just changed the DaemonSet {NAME}: try again");
        }
    }
    replace(client, &balancers::changed(change, &latest)?)
}

/// Change of the configuration in the cluster.
struct ConfigurationEdit {
    /// The ConfigMap as it was read: the server refuses if it has changed since.
    found: Option<Value>,
    before: String,
    after: String,
}

impl ConfigurationEdit {
    fn prepare(
        client: &Client,
        change: &BalancersChange<'_>,
        new: impl Fn() -> anyhow::Result<String>,
    ) -> anyhow::Result<Self> {
        let found = client.get("configmap", NAME)?;
        let before = match &found {
            Some(map) => text_of(map)?.to_owned(),
            None => new()?,
        };
        let document =
            signalbox_core::wire::yaml::read_json(&before).context("reading the cluster's signalbox.yaml")?;
        let other = document.get("ha").filter(|section| *section != change.section);
        if let Some(other) = other.filter(|_| !change.args.replace) {
            bail!(
                "the ConfigMap {NAME} has another section `ha`:\n{}--replace makes it\n{}",
                section::yaml(other)?,
                section::yaml(change.section)?
            );
        }
        let after = section::put(&before, change.section)?;
        check(&after)?;
        Ok(Self { found, before, after })
    }

    fn apply(self, client: &Client, args: &HaConfigArgs) -> anyhow::Result<()> {
        let Some(mut map) = self.found else {
            return client.create(&objects::config_map(args, &self.after));
        };
        if self.after == self.before {
            println!("configmap/{NAME} unchanged");
            return Ok(());
        }
        map["data"][FILE] = self.after.into();
        client.replace(&map)
    }
}

fn text_of(map: &Value) -> anyhow::Result<&str> {
    let text = map["data"][FILE].as_str();
    text.with_context(|| format!("the ConfigMap {NAME} has no {FILE}"))
}

/// Configuration of a cluster that has none.
fn configuration(args: &HaConfigArgs, openshift: bool) -> anyhow::Result<String> {
    /// OpenShift's routers are known.
    const CLUSTER: &str = "kubernetes: { in_cluster: true }";
    let Some((namespace, selector)) = args.router_pods()? else {
        if openshift {
            return Ok(CONFIGURATION.to_owned());
        }
        bail!(
            "--routers is missing: the namespace and labels of the ingress controller's pods, as in ingress/app=router"
        );
    };
    let routers = json!({ "in_cluster": true, "routers": { "namespace": namespace, "labels": selector } });
    Ok(CONFIGURATION.replace(CLUSTER, &format!("kubernetes: {routers}")))
}

/// A configuration that signalbox would refuse must not get into the cluster.
fn check(text: &str) -> anyhow::Result<()> {
    match config::parse(text) {
        Ok(_) => Ok(()),
        Err(errors) => bail!(
            "signalbox.yaml with the section `ha`: {}",
            errors.with_file(FILE.as_ref())
        ),
    }
}

impl HaConfigArgs {
    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(NAME)
    }

    fn account(&self) -> &str {
        self.service_account.as_deref().unwrap_or(NAME)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn objects(args: &HaConfigArgs) -> Vec<Value> {
        let (section, _) = section::build(args).unwrap();
        let text = show(args, &section).unwrap();
        let read = |document| signalbox_core::wire::yaml::read_json(document).unwrap();
        text.split("---\n").map(read).collect()
    }

    fn find<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
        objects.iter().find(|object| object["kind"] == kind).unwrap()
    }

    fn args() -> HaConfigArgs {
        HaConfigArgs {
            name: Some("west".to_owned()),
            virtual_ips: Some("10.1.1.5-6".to_owned()),
            ..HaConfigArgs::default()
        }
    }

    #[test]
    fn ha_balancers_are_the_overlays_objects_with_the_given_options() {
        let args = HaConfigArgs {
            selector: vec!["ha-router=primary".to_owned(), "region in (a,b),!old".to_owned()],
            images: Some("registry.test/${component}:${version}".to_owned()),
            latest_images: true,
            namespace: Some("infra".to_owned()),
            service_account: Some("ipfailover".to_owned()),
            routers: Some("ingress/app=router".to_owned()),
            ..args()
        };
        let objects = objects(&args);
        let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
        assert_eq!(pod["nodeSelector"], Value::Null);
        let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(
            terms["nodeSelectorTerms"],
            json!([{ "matchExpressions": [
                { "key": "ha-router", "operator": "In", "values": ["primary"] },
                { "key": "region", "operator": "In", "values": ["a", "b"] },
                { "key": "old", "operator": "DoesNotExist" },
            ] }])
        );
        let [balancer, supervisor] = pod["containers"].as_array().unwrap().as_slice() else {
            panic!("{pod:#}");
        };
        assert_eq!(balancer["image"], "registry.test/signalbox:latest");
        assert_eq!(supervisor["image"], "registry.test/signalbox-ha:latest");
        let capabilities = json!({ "drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"] });
        assert_eq!(supervisor["securityContext"]["capabilities"], capabilities);
        let is_mounted = |mount: &Value| mount["mountPath"] == "/etc/signalbox-sync";
        assert!(balancer["volumeMounts"].as_array().unwrap().iter().any(is_mounted));

        assert_eq!(pod["serviceAccountName"], "ipfailover");
        assert_eq!(
            find(&objects, "ServiceAccount")["metadata"],
            json!({ "name": "ipfailover", "namespace": "infra" })
        );
        assert_eq!(find(&objects, "Namespace")["metadata"]["name"], "infra");
        let binding = find(&objects, "RoleBinding");
        assert_eq!(binding["metadata"]["namespace"], "ingress");
        assert_eq!(binding["subjects"][0]["name"], "ipfailover");
        assert_eq!(binding["subjects"][0]["namespace"], "infra");
        let text = text_of(find(&objects, "ConfigMap")).unwrap();
        let parsed = config::parse(text).unwrap().model;
        assert_eq!(parsed.ha.unwrap().name, "west");
        assert!(
            text.contains("\"routers\":{\"labels\":\"app=router\",\"namespace\":\"ingress\"}"),
            "{text}"
        );
    }

    #[test]
    fn without_router_pods_the_objects_are_for_openshift() {
        let objects = objects(&args());
        let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
        assert_eq!(pod["securityContext"]["seLinuxOptions"]["type"], "spc_t");
        assert_eq!(
            find(&objects, "SecurityContextConstraints")["metadata"]["name"],
            "signalbox"
        );
        let place = "image-registry.example.com/signalbox:";
        assert!(pod["containers"][0]["image"].as_str().unwrap().starts_with(place));
        let plain = HaConfigArgs {
            openshift: Some(false),
            ..args()
        };
        let (section, _) = section::build(&plain).unwrap();
        assert!(
            show(&plain, &section)
                .unwrap_err()
                .to_string()
                .contains("--routers is missing")
        );
    }

    #[test]
    fn nodes_match_the_selector_and_the_requested_replica_count() {
        let found = |count: u8| {
            (1..=count)
                .map(|n| (format!("n{n}"), IpAddr::from([10, 0, 0, n])))
                .collect()
        };
        let named = nodes::with_nodes(&args(), found(2), "a=b").unwrap();
        assert_eq!(
            (named.nodes.as_deref(), named.sync),
            (Some("n1=10.0.0.1,n2=10.0.0.2"), Some(true))
        );
        assert_eq!(nodes::with_nodes(&args(), found(1), "a=b").unwrap().sync, Some(false));
        for (count, replicas, part) in [
            (0, None, "no node has"),
            (9, None, "at most 8"),
            (2, Some(3), "--replicas=3"),
        ] {
            let args = HaConfigArgs { replicas, ..args() };
            let error = nodes::with_nodes(&args, found(count), "a=b").unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let own = HaConfigArgs {
            nodes: Some("a=10.9.0.1".to_owned()),
            ..args()
        };
        assert_eq!(nodes::with_nodes(&own, found(2), "a=b").unwrap().nodes, own.nodes);
    }
}
