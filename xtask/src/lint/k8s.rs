//! Manifests for Kubernetes: kustomize builds each overlay, its objects are valid for Kubernetes and the operators, and
//! capabilities, rules and rights are the same as elsewhere.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    Lint,
    alerts::{list, text},
    broken::Broken,
    files::{CAPABILITIES, CONFIGURATION, KUBERNETES},
    grafana, kube_tools, units,
};
use crate::dist;

const DIRECTORY: &str = "packaging/k8s";
/// Registry in the manifests, in place of the operator's own.
const REGISTRY: &str = "image-registry.example.com";
const RULE: &str = "packaging/k8s/monitoring/prometheusrule.yaml";
/// Overlays that operators choose from.
pub(crate) const OVERLAYS: [&str; 7] = [
    "plain",
    "plain-ha",
    "openshift",
    "openshift-ha",
    "agent",
    "openshift-agent",
    "certificates",
];
/// Kinds that Kubernetes itself does not have.
const SCHEMAS: [(&str, &str); 3] = [
    ("PodMonitor", include_str!("schemas/PodMonitor.json")),
    ("PrometheusRule", include_str!("schemas/PrometheusRule.json")),
    (
        "SecurityContextConstraints",
        include_str!("schemas/SecurityContextConstraints.json"),
    ),
];
/// Objects of the document that an operator makes with his own contents.
const NOT_PACKAGED: [&str; 2] = ["Secret", "ConfigMap"];

pub(super) const LINT: Lint = Lint {
    tools: &["python3", "apt-get"],
    prepare: || kube_tools::kustomize().and_then(|_| kube_tools::python()).map(drop),
    check,
    broken: &[
        Broken {
            file: "packaging/k8s/components/openshift/kustomization.yaml",
            from: "scc.yaml",
            to: "sccs.yaml",
            says: "sccs.yaml",
        },
        Broken {
            file: "packaging/k8s/base/daemonset.yaml",
            from: "readinessProbe: {",
            to: "readynessProbe: {",
            says: "readynessProbe",
        },
        Broken {
            file: "packaging/k8s/components/openshift/scc.yaml",
            from: "allowHostPorts: true",
            to: "allowHostPorts: maybe",
            says: "allowHostPorts",
        },
        Broken {
            file: "packaging/k8s/monitoring/podmonitor.yaml",
            from: "podMetricsEndpoints",
            to: "endpoints",
            says: "PodMonitor signalbox",
        },
        Broken {
            file: "packaging/k8s/monitoring/podmonitor.yaml",
            from: "port: admin",
            to: "port: metrics",
            says: "no port metrics",
        },
        Broken {
            file: RULE,
            from: "for: 1m",
            to: "for: 2m",
            says: "--update",
        },
        Broken {
            file: "packaging/k8s/base/daemonset.yaml",
            from: "add: [BPF, ",
            to: "add: [SYS_ADMIN, BPF, ",
            says: "container signalbox",
        },
        Broken {
            file: "packaging/k8s/components/ha/supervisor.yaml",
            from: "/signalbox-ha:",
            to: "/keepalived:",
            says: "is none of",
        },
        Broken {
            file: "packaging/k8s/components/ha/supervisor.yaml",
            from: "drop: [ALL], ",
            to: "",
            says: "container ha",
        },
        Broken {
            file: "packaging/k8s/components/openshift/scc.yaml",
            from: "PERFMON, ",
            to: "",
            says: "SecurityContextConstraints",
        },
        Broken {
            file: CAPABILITIES,
            from: "name: \"CAP_BPF\"",
            to: "name: \"CAP_SYS_ADMIN\"",
            says: "container signalbox",
        },
        Broken {
            file: "packaging/k8s/base/daemonset.yaml",
            from: "terminationGracePeriodSeconds: 75",
            to: "terminationGracePeriodSeconds: 30",
            says: "terminationGracePeriodSeconds",
        },
        // kustomize moves the Role out of the routers' namespace.
        Broken {
            file: "packaging/k8s/overlays/openshift-agent/kustomization.yaml",
            from: "resources:",
            to: "namespace: signalbox\nresources:",
            says: "Role signalbox-routers",
        },
        Broken {
            file: "packaging/k8s/rbac/rbac.yaml",
            from: "verbs: [list, watch]",
            to: "verbs: [list, watch, delete]",
            says: "ClusterRole signalbox",
        },
        Broken {
            file: "packaging/k8s/rbac/rbac.yaml",
            from: "resources: [nodes]",
            to: "resources: [nodes, secrets]",
            says: "reads Secrets",
        },
        Broken {
            file: "packaging/k8s/overlays/plain/kustomization.yaml",
            from: "resources:",
            to: "components: [../../components/openshift]\nresources:",
            says: "plain Kubernetes has no security.openshift.io",
        },
        Broken {
            file: "packaging/k8s/overlays/plain-ha/kustomization.yaml",
            from: "components/ha]",
            to: "components/ha, ../../components/routers]",
            says: "makes no namespace openshift-ingress",
        },
        Broken {
            file: "packaging/k8s/overlays/plain/signalbox.yaml",
            from: "namespace: ingress",
            to: "namespace: ingresses",
            says: "makes no namespace ingress",
        },
        Broken {
            file: "packaging/k8s/base/daemonset.yaml",
            from: "/signalbox:0",
            to: "/signalbox:1",
            says: "is none of",
        },
        Broken {
            file: "packaging/grafana/kustomization.yaml",
            from: ", signalbox-ha.json",
            to: "",
            says: "dashboards",
        },
    ],
};

fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut built = Vec::new();
    for overlay in OVERLAYS {
        match build(root, overlay) {
            Ok(objects) => built.push(objects),
            Err(error) => problems.push(format!("{overlay}: {error:#}")),
        }
    }
    let [
        plain,
        plain_ha,
        openshift,
        openshift_ha,
        agent,
        openshift_agent,
        certificates,
    ] = built.as_slice()
    else {
        return Ok(problems);
    };
    problems.extend(validate(&built.concat())?);
    for objects in [plain, plain_ha, openshift, openshift_ha] {
        problems.extend(capabilities(root, objects)?);
        problems.extend(pods(root, objects)?);
        problems.extend(secrets(objects));
    }
    for objects in [plain, plain_ha, agent] {
        problems.extend(foreign(objects));
    }
    problems.extend(images(&built.concat()));
    problems.extend(documented(root, &[openshift_agent.as_slice(), certificates].concat())?);
    problems.extend(secrets(openshift_agent));
    problems.extend(dashboards(root, openshift)?);
    if read(root, RULE)? != rule(root)? {
        problems.push(format!(
            "{RULE} is not what packaging/prometheus says: `cargo xtask lint k8s --update`"
        ));
    }
    Ok(problems)
}

/// Writes the rules of Prometheus as an object of its operator.
pub(super) fn update(root: &Path) -> Result<()> {
    fs::write(root.join(RULE), rule(root)?).with_context(|| format!("writing {RULE}"))
}

fn rule(root: &Path) -> Result<String> {
    let mut out = "# Written by `cargo xtask lint k8s --update` from packaging/prometheus.\n\
                   apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n\
                   metadata: { name: signalbox, namespace: signalbox, labels: { app: signalbox } }\n\
                   spec:\n  groups:\n"
        .to_owned();
    for file in ["recording", "alerts"] {
        let rules = read(root, &format!("packaging/prometheus/{file}.yaml"))?;
        let groups = rules
            .split_once("groups:\n")
            .with_context(|| format!("{file}.yaml has no groups"))?
            .1;
        groups.lines().for_each(|line| out += &format!("  {line}\n"));
    }
    Ok(out)
}

fn read(root: &Path, file: &str) -> Result<String> {
    fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))
}

/// Objects of an overlay.
fn build(root: &Path, overlay: &str) -> Result<Vec<Value>> {
    let overlay = root.join(DIRECTORY).join("overlays").join(overlay);
    let output = Command::new(kube_tools::kustomize()?)
        .arg("build")
        .arg(overlay)
        .output()?;
    if !output.status.success() {
        bail!("kustomize: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    objects(&String::from_utf8_lossy(&output.stdout))
}

fn objects(text: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).context("kustomize has written no YAML")
}

/// Returns the errors that Kubernetes, or the operators, would report for objects.
fn validate(objects: &[Value]) -> Result<Vec<String>> {
    let mut schemas = serde_json::Map::new();
    for (kind, schema) in SCHEMAS {
        schemas.insert(kind.to_owned(), serde_json::from_str(schema).context(kind)?);
    }
    let mut python = Command::new(kube_tools::python()?);
    python.args(["-c", include_str!("validate.py")]).stdin(Stdio::piped());
    let mut child = python.stdout(Stdio::piped()).spawn().context("python3")?;
    let asked = json!({ "objects": objects, "schemas": schemas }).to_string();
    child.stdin.take().context("no pipe")?.write_all(asked.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("validate.py failed: {}", output.status);
    }
    let said: BTreeSet<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    Ok(said.into_iter().collect())
}

fn find<'o>(objects: &'o [Value], kind: &str) -> &'o Value {
    objects
        .iter()
        .find(|object| text(object, "kind") == kind)
        .unwrap_or(&Value::Null)
}

fn containers(objects: &[Value]) -> &[Value] {
    list(&find(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"])
}

/// Full name of an image in the manifests.
pub(crate) fn image(name: &str) -> String {
    format!("{REGISTRY}/{name}:{}", env!("CARGO_PKG_VERSION"))
}

/// Compares the images of all containers with those that `dist` makes.
fn images(objects: &[Value]) -> Vec<String> {
    let made: BTreeSet<String> = dist::image::NAMES.iter().map(|(name, _)| image(name)).collect();
    let pods = objects.iter().map(|object| &object["spec"]["template"]["spec"]);
    let containers = pods.flat_map(|pod| list(&pod["initContainers"]).iter().chain(list(&pod["containers"])));
    let used: BTreeSet<String> = containers
        .map(|container| text(container, "image").to_owned())
        .collect();
    let mut problems: Vec<String> = used
        .difference(&made)
        .map(|image| format!("image {image} is none of {made:?}, which `cargo xtask dist image` makes"))
        .collect();
    let unused = made.difference(&used);
    problems.extend(unused.map(|image| format!("no manifest uses {image}")));
    problems
}

/// Compares capabilities with those of the product's table, and of the unit of virtual addresses.
fn capabilities(root: &Path, objects: &[Value]) -> Result<Vec<String>> {
    let short = |names: Vec<String>| {
        json!(
            names
                .iter()
                .map(|name| name.trim_start_matches("CAP_"))
                .collect::<Vec<_>>()
        )
    };
    let table = short(units::capabilities(root)?);
    let unit = read(root, "packaging/systemd/signalbox-ha.service")?;
    let of_unit = short(units::values(&unit, "AmbientCapabilities"));
    let mut problems = Vec::new();
    for container in containers(objects) {
        let (name, has) = (text(container, "name"), &container["securityContext"]["capabilities"]);
        let wanted = if name == "ha" { &of_unit } else { &table };
        if *has != json!({ "drop": ["ALL"], "add": wanted }) {
            problems.push(format!(
                "container {name}: capabilities {has}, and not ALL dropped and {wanted} added"
            ));
        }
    }
    let allowed = &find(objects, "SecurityContextConstraints")["allowedCapabilities"];
    if !allowed.is_null() && *allowed != table {
        problems.push(format!("SecurityContextConstraints: {allowed}, and not {table}"));
    }
    Ok(problems)
}

/// Compares names and times that several objects must agree on.
fn pods(root: &Path, objects: &[Value]) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let documented = read(root, CONFIGURATION)?;
    let row = documented
        .lines()
        .find_map(|line| line.strip_prefix("| `shutdown` | `"));
    let shutdown: u64 = row
        .and_then(|rest| rest.split_once("s`")?.0.parse().ok())
        .context("timeouts.shutdown")?;
    let grace = &find(objects, "DaemonSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"];
    if grace.as_u64().is_none_or(|seconds| seconds <= shutdown) {
        problems.push(format!(
            "terminationGracePeriodSeconds {grace} is not more than timeouts.shutdown, {shutdown} s"
        ));
    }
    let ports = containers(objects)
        .iter()
        .flat_map(|container| list(&container["ports"]));
    let ports: Vec<&str> = ports.map(|port| text(port, "name")).collect();
    for endpoint in list(&find(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]) {
        let port = text(endpoint, "port");
        if !ports.contains(&port) {
            problems.push(format!("PodMonitor: the pods have no port {port}"));
        }
    }
    Ok(problems)
}

/// Compares objects with those that the document shows.
fn documented(root: &Path, objects: &[Value]) -> Result<Vec<String>> {
    let document = read(root, KUBERNETES)?;
    let blocks = document
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("```")?.0));
    let mut problems = Vec::new();
    for block in blocks.filter(|block| block.starts_with("apiVersion:")) {
        for shown in self::objects(block)? {
            if NOT_PACKAGED.contains(&text(&shown, "kind")) {
                continue;
            }
            let key = |object: &Value| ["kind", "metadata"].map(|key| object[key].clone());
            if !objects
                .iter()
                .any(|object| key(object) == key(&shown) && *object == shown)
            {
                let (kind, name) = (text(&shown, "kind"), text(&shown["metadata"], "name"));
                problems.push(format!("{kind} {name} is not as {KUBERNETES} shows it"));
            }
        }
    }
    Ok(problems)
}

/// Namespaces of the routers that a balancer is configured for.
fn of_routers(objects: &[Value]) -> Vec<String> {
    let file = text(&find(objects, "ConfigMap")["data"], "signalbox.yaml");
    let configuration: Value = serde_saphyr::from_str(file).unwrap_or(Value::Null);
    let clusters = list(&configuration["clusters"]).iter();
    let routers = clusters.map(|cluster| &cluster["kubernetes"]["routers"]);
    routers.map(|routers| text(routers, "namespace").to_owned()).collect()
}

/// Objects that a Kubernetes without OpenShift and operators refuses: of kinds that it lacks, or in a namespace that the
/// overlay does not make and the configuration does not name.
fn foreign(objects: &[Value]) -> Vec<String> {
    let named = |object: &Value| format!("{} {}", text(object, "kind"), text(&object["metadata"], "name"));
    let made = text(&find(objects, "Namespace")["metadata"], "name");
    let of_routers = of_routers(objects);
    let mut problems = Vec::new();
    for object in objects {
        let (group, _) = text(object, "apiVersion").split_once('/').unwrap_or_default();
        if group.contains('.') && !group.ends_with(".k8s.io") {
            problems.push(format!("{}: plain Kubernetes has no {group}", named(object)));
        }
        let namespace = text(&object["metadata"], "namespace");
        let is_known = namespace == made || of_routers.iter().any(|known| known == namespace);
        if !namespace.is_empty() && !is_known {
            problems.push(format!("{}: the overlay makes no namespace {namespace}", named(object)));
        }
    }
    problems
}

/// Only the overlay for Secrets has rights to read them.
fn secrets(objects: &[Value]) -> Vec<String> {
    let reads = |object: &&Value| {
        let mut resources = list(&object["rules"]).iter().flat_map(|rule| list(&rule["resources"]));
        resources.any(|resource| resource == "secrets" || resource == "*")
    };
    let named = |object: &Value| {
        format!(
            "{} {} reads Secrets",
            text(object, "kind"),
            text(&object["metadata"], "name")
        )
    };
    objects.iter().filter(reads).map(named).collect()
}

/// Compares the dashboards with those in the ConfigMap.
fn dashboards(root: &Path, objects: &[Value]) -> Result<Vec<String>> {
    let named = |object: &&Value| text(&object["metadata"], "name") == "signalbox-dashboards";
    let data = objects.iter().find(named).map_or(&Value::Null, |map| &map["data"]);
    let packed: Vec<&str> = data
        .as_object()
        .into_iter()
        .flat_map(|data| data.keys().map(String::as_str))
        .collect();
    let paths = grafana::dashboards(root)?;
    let there: Vec<_> = paths.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    Ok(if packed == there {
        Vec::new()
    } else {
        vec![format!("ConfigMap of dashboards: {packed:?}, and not {there:?}")]
    })
}
