//! The packaged manifests on a real Kubernetes of several nodes (`cargo xtask cluster`). Each test has a cluster of its own.

mod addresses;
mod ha_config;
mod overlays;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::lab::{Ns, Proc, cannot_run, eventually, privileged};

/// Programs of some 100 MB start for each node, on processors that others use, too.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// A pod is scheduled, started, and found ready.
const POD_TIMEOUT: Duration = Duration::from_secs(90);
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster, and the process that owns it.
struct Cluster {
    name: &'static str,
    xtask: PathBuf,
    up: Proc,
    /// For overlays of the test.
    dir: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Cluster {
    /// Starts a cluster, whose last node runs a router. `None` where its programs have not been built.
    fn start(test: &str, name: &'static str, nodes: u8) -> Option<Self> {
        if !privileged(test) {
            return None;
        }
        let given = |variable| std::env::var_os(variable).map(PathBuf::from);
        let (Some(xtask), Some(_), Some(program)) = (
            given("SIGNALBOX_XTASK"),
            given("SIGNALBOX_KUBE_BIN"),
            given("SIGNALBOX_BIN"),
        ) else {
            cannot_run(
                test,
                "no programs of Kubernetes: `cargo xtask test --share 12` builds them",
            );
            return None;
        };
        let dir = std::env::temp_dir().join(format!("signalbox-cluster-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        let mut command = Command::new(&xtask);
        command.args(["cluster", "--name", name, "up", "--nodes", &nodes.to_string()]);
        command.arg("--program").arg(program);
        let up = Proc::spawn("cluster", command, &dir);
        let mut cluster = Self { name, xtask, up, dir };
        let mut ended = None;
        let is_up = eventually(START_TIMEOUT, || {
            ended = cluster.up.ended();
            ended.is_some() || cluster.up.log().contains("KUBECONFIG=")
        });
        assert!(is_up && ended.is_none(), "{ended:?}: {}", cluster.up.log());
        Some(cluster)
    }

    /// Where `cargo xtask cluster` keeps its files.
    fn files(&self) -> PathBuf {
        Path::new("/var/tmp/signalbox-cluster").join(self.name)
    }

    fn task(&self, words: &[&str]) -> Output {
        let mut command = Command::new(&self.xtask);
        command.args(["cluster", "--name", self.name]).args(words);
        command.output().unwrap()
    }

    /// A command that must succeed; returns what it says.
    #[track_caller]
    fn must(&self, words: &[&str]) -> String {
        let output = self.task(words);
        let wrong = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {wrong}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    fn kubectl(&self, words: &[&str]) -> String {
        self.must(&[&["kubectl"], words].concat())
    }

    /// Applies objects of a text.
    #[track_caller]
    fn apply_text(&self, objects: &str) {
        let file = self.dir.join("objects.yaml");
        std::fs::write(&file, objects).unwrap();
        self.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    }

    /// An overlay of packaging/k8s with another configuration, as an operator would copy it.
    fn configured(&self, overlay: &str, configuration: &str) -> String {
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/k8s/overlays");
        let packaged = packaged.canonicalize().unwrap().join(overlay);
        let own = self.dir.join("overlay");
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(own.join("signalbox.yaml"), configuration).unwrap();
        let up = "../".repeat(own.canonicalize().unwrap().components().count() - 1);
        let base = packaged.strip_prefix("/").unwrap();
        let kustomization = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [{up}{}]\n\
             configMapGenerator:\n  - {{ name: signalbox, namespace: signalbox, behavior: replace, files: [signalbox.yaml] }}\n\
             generatorOptions: {{ disableNameSuffixHash: true }}\n",
            base.display()
        );
        std::fs::write(own.join("kustomization.yaml"), kustomization).unwrap();
        own.to_str().unwrap().to_owned()
    }

    /// Waits until pods of a DaemonSet or Deployment are as wanted, and ready.
    #[track_caller]
    fn await_rollout(&self, object: &str) {
        let wait = format!("--timeout={}s", POD_TIMEOUT.as_secs());
        let words = ["kubectl", "-n", "signalbox", "rollout", "status", object, &wait];
        let output = self.task(&words);
        assert!(
            output.status.success(),
            "{object}: {}\n{}",
            self.kubectl(&["-n", "signalbox", "describe", "pods"]),
            self.kubectl(&[
                "-n",
                "signalbox",
                "logs",
                "-l",
                "app=signalbox",
                "--all-containers",
                "--tail=40"
            ])
        );
    }

    /// Names of signalbox's pods, in the order of their nodes.
    fn pods(&self) -> Vec<String> {
        let list = self.json(&["-n", "signalbox", "get", "pods", "-l", "app=signalbox"]);
        let mut pods: Vec<(String, String)> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .map(|pod| {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                (text(&pod["spec"]["nodeName"]), text(&pod["metadata"]["name"]))
            })
            .collect();
        pods.sort();
        pods.into_iter().map(|(_, name)| name).collect()
    }

    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.kubectl(&[words, &["-o", "json"]].concat())).unwrap()
    }

    /// Runs signalbox in a pod.
    #[track_caller]
    fn signalbox(&self, pod: &str, words: &[&str]) -> String {
        let exec = ["-n", "signalbox", "exec", pod, "-c", "signalbox", "--", "signalbox"];
        self.kubectl(&[&exec, words].concat())
    }

    /// The network namespace of a node, or of the clients (`client`).
    fn ns(&self, of: &str) -> Ns {
        Ns::open(&format!("sbk-{}-{of}", self.name)).unwrap()
    }

    /// Asks an address for a name as a client; the router's answer, or an empty text.
    fn ask(&self, address: &str, name: &str) -> String {
        let (host, url) = (format!("Host: {name}"), format!("http://{address}/"));
        let answer = self
            .ns("client")
            .output(&["curl", "-sf", "--max-time", "3", "-H", &host, &url]);
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    }

    /// Waits until an address answers for a name.
    #[track_caller]
    fn serves(&self, address: &str, name: &str) {
        let served = eventually(POD_TIMEOUT, || self.ask(address, name) == format!("n3 {name}"));
        assert!(
            served,
            "{address} does not serve {name}: {}",
            self.signalbox(&self.pods()[0], &["status"])
        );
    }

    /// Ends the cluster in order, which must succeed.
    fn end(mut self) {
        self.up.signal(Signal::SIGTERM);
        assert_eq!(self.up.exit_code(END_TIMEOUT), 0, "{}", self.up.log());
    }
}

/// An Ingress in namespace `shop`.
fn ingress(name: &str, host: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{ name: {name}, namespace: shop }}\nspec:\n  rules:\n\
         \x20   - host: {host}\n      http: {{ paths: [{{ path: /, pathType: Prefix, backend: {{ service: {{ name: {name}, port: {{ number: 80 }} }} }} }}] }}\n"
    )
}
