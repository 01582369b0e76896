//! The DaemonSet: a new one, or one that gets supervisors beside its balancers.

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::super::options::HaConfigArgs;
use super::nodes::{Placement, SELECTOR};
use super::objects::{self, document, list};

const BALANCERS: &str = include_str!("../../../../../packaging/k8s/base/daemonset.yaml");
const SUPERVISOR: &str = include_str!("../../../../../packaging/k8s/components/ha/supervisor.yaml");
/// Settings that processes read at their start only: where they change, pods are replaced one after the other.
const AT_START: &str = "signalbox.io/ha";

/// Change of a DaemonSet.
pub(super) struct BalancersChange<'a> {
    pub(super) args: &'a HaConfigArgs,
    pub(super) section: &'a Value,
    pub(super) placement: Placement,
}

/// A new DaemonSet.
pub(super) fn new(change: &BalancersChange<'_>, openshift: bool) -> anyhow::Result<Value> {
    let mut balancers = document(BALANCERS)?;
    let pod = &mut balancers["spec"]["template"]["spec"];
    if openshift {
        // SELinux keeps other types from the host's bpf file system.
        pod["securityContext"] = json!({ "seLinuxOptions": { "type": "spc_t" } });
    }
    pod["serviceAccountName"] = change.args.account().into();
    change.add_to(&mut balancers, true)?;
    objects::rename(change.args, &mut balancers);
    Ok(balancers)
}

/// A DaemonSet that the cluster has, with the change.
pub(super) fn changed(change: &BalancersChange<'_>, found: &Value) -> anyhow::Result<Value> {
    let mut balancers = found.clone();
    change.add_to(&mut balancers, false)?;
    Ok(balancers)
}

impl BalancersChange<'_> {
    /// Adds what is missing. All else stays as it is.
    fn add_to(&self, balancers: &mut Value, is_new: bool) -> anyhow::Result<()> {
        let (packaged, supervisor) = (document(BALANCERS)?, document(SUPERVISOR)?);
        let [packaged, added] = [&packaged, &supervisor].map(|set| &set["spec"]["template"]["spec"]);
        let pod = &mut balancers["spec"]["template"]["spec"];
        add_missing(pod, "volumes", "name", &added["volumes"])?;
        for container in list(&added["containers"]) {
            let containers = pod["containers"]
                .as_array_mut()
                .context("the DaemonSet has no containers")?;
            match containers
                .iter_mut()
                .find(|existing| existing["name"] == container["name"])
            {
                Some(existing) => add_missing(existing, "volumeMounts", "mountPath", &container["volumeMounts"])?,
                None => {
                    let mut container = container.clone();
                    container["image"] = self.image(&container["image"])?.into();
                    containers.push(container);
                }
            }
        }
        let ours = [list(&packaged["containers"]), list(&added["containers"])].concat();
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            let is_packaged = |ours: &&Value| ours["name"] == container["name"] && ours["image"].is_string();
            let Some(ours) = ours.iter().find(is_packaged) else {
                continue;
            };
            add_missing(container, "env", "name", &ours["env"])?;
            // `--images` also changes the images of balancers that run.
            if is_new || self.args.images.is_some() {
                container["image"] = self.image(&ours["image"])?.into();
            }
        }
        if let Some(affinity) = &self.placement.affinity {
            pod["affinity"] = affinity.clone();
            pod.as_object_mut().map(|pod| pod.remove("nodeSelector"));
            balancers["metadata"]["annotations"][SELECTOR] = self.placement.selector.clone().into();
        }
        let at_start = ["interface", "nodes", "sync"].map(|key| (key.to_owned(), self.section[key].clone()));
        let at_start = Value::Object(at_start.into_iter().collect()).to_string();
        balancers["spec"]["template"]["metadata"]["annotations"][AT_START] = at_start.into();
        Ok(())
    }

    /// The image that stands for a packaged one.
    fn image(&self, packaged: &Value) -> anyhow::Result<String> {
        let packaged = packaged.as_str().unwrap_or_default();
        let (component, version) = packaged
            .rsplit('/')
            .next()
            .and_then(|name| name.split_once(':'))
            .with_context(|| format!("the packaged image `{packaged}` has no tag"))?;
        let version = if self.args.latest_images { "latest" } else { version };
        match self.args.images.as_deref().or(objects::IMAGES) {
            Some(images) => Ok(images.replace("${component}", component).replace("${version}", version)),
            None if self.args.create => bail!(
                "--images is missing: this build knows no registry. Name yours, as in \
                 'registry.example.com/${{component}}:${{version}}'"
            ),
            None => Ok(packaged.to_owned()),
        }
    }
}

/// Adds the items of a list that another one has not, by a key of theirs.
fn add_missing(object: &mut Value, name: &str, key: &str, items: &Value) -> anyhow::Result<()> {
    if object[name].is_null() {
        object[name] = json!([]);
    }
    let existing = object[name]
        .as_array_mut()
        .with_context(|| format!("`{name}` is no list"))?;
    for item in list(items) {
        if !existing.iter().any(|existing| existing[key] == item[key]) {
            existing.push(item.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A DaemonSet of the overlay `plain` that an operator has changed, with the change for a section.
    fn with_section(section: &Value, found: &Value) -> Value {
        let args = HaConfigArgs {
            images: Some("registry.test/${component}:${version}".to_owned()),
            ..HaConfigArgs::default()
        };
        let placement = Placement {
            selector: String::new(),
            affinity: None,
        };
        let change = BalancersChange {
            args: &args,
            section,
            placement,
        };
        changed(&change, found).unwrap()
    }

    #[test]
    fn a_daemon_set_is_kept_and_restarts_only_for_start_settings() {
        let mut found = document(BALANCERS).unwrap();
        let pod = &mut found["spec"]["template"]["spec"];
        pod["volumes"].as_array_mut().unwrap().push(json!({ "name": "token" }));
        pod["containers"][0]["args"] = json!(["run", "--log", "debug"]);
        let before = found["spec"]["template"]["spec"].clone();
        let section = json!({ "name": "west", "nodes": [{ "name": "n1" }], "vips": ["10.1.1.5"] });

        let once = with_section(&section, &found);
        let pod = &once["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["args"], before["containers"][0]["args"]);
        assert!(list(&pod["volumes"]).starts_with(list(&before["volumes"])));
        assert_eq!(pod["nodeSelector"], before["nodeSelector"]);
        assert_eq!(list(&pod["containers"]).len(), 2);
        assert_eq!(with_section(&section, &once), once);

        let mut other = section.clone();
        other["vips"] = json!(["10.1.1.6"]);
        assert_eq!(with_section(&other, &once), once, "addresses are read again");
        other["nodes"] = json!([{ "name": "n1" }, { "name": "n2" }]);
        assert_ne!(
            with_section(&other, &once)["spec"]["template"],
            once["spec"]["template"]
        );
    }
}
