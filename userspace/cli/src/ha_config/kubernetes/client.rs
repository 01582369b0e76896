//! OpenShift's or Kubernetes' client, with the rights of the user who is logged in there.

use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// Author of changes, in the objects' `managedFields`.
const MANAGER: &str = "--field-manager=signalbox-ha-config";

/// `oc` or `kubectl`: one that reaches a server.
pub(super) struct Client {
    program: &'static str,
    namespace: String,
}

impl Client {
    pub(super) fn find(namespace: &str) -> anyhow::Result<Self> {
        let mut problems = Vec::new();
        for program in ["oc", "kubectl"] {
            let client = Self {
                program,
                namespace: namespace.to_owned(),
            };
            match client.ask(&["get", "--raw", "/version"]) {
                Ok(_) => return Ok(client),
                Err(problem) => problems.push(format!("{program}: {problem:#}")),
            }
        }
        bail!(
            "no cluster is reached: leave --create out, and apply what is shown\n{}",
            problems.join("\n")
        )
    }

    pub(super) fn is_openshift(&self) -> anyhow::Result<bool> {
        match self.ask(&["get", "--raw", "/apis/security.openshift.io"]) {
            Ok(_) => Ok(true),
            Err(error) if error.to_string().contains("NotFound") => Ok(false),
            Err(error) => Err(error.context("whether this is an OpenShift: --openshift=true or =false says it")),
        }
    }

    /// An object of the namespace, if there is one.
    pub(super) fn get(&self, kind: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let words = [
            "-n",
            &self.namespace,
            "get",
            kind,
            name,
            "--ignore-not-found",
            "-o",
            "json",
        ];
        let text = self.ask(&words)?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        let object = serde_json::from_str(&text).with_context(|| format!("reading the {kind} {name}"))?;
        Ok(Some(object))
    }

    /// Names and addresses of the nodes of a label selector, by their names.
    pub(super) fn nodes(&self, selector: &str) -> anyhow::Result<Vec<(String, IpAddr)>> {
        let text = self.ask(&["get", "nodes", "-l", selector, "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("reading the nodes")?;
        let mut nodes = Vec::new();
        for node in list["items"].as_array().into_iter().flatten() {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
            let internal = addresses
                .filter(|address| address["type"] == "InternalIP")
                .find_map(|address| address["address"].as_str()?.parse().ok());
            nodes.push((
                name.to_owned(),
                internal.with_context(|| format!("node {name} has no InternalIP"))?,
            ));
        }
        nodes.sort();
        Ok(nodes)
    }

    /// Fails if the server would refuse to replace an object, or if it has changed since it was read.
    pub(super) fn try_replace(&self, object: &Value) -> anyhow::Result<()> {
        self.send(&["replace", "--dry-run=server", "-f", "-"], object).map(drop)
    }

    /// Replaces an object, unless it has changed since it was read.
    pub(super) fn replace(&self, object: &Value) -> anyhow::Result<()> {
        self.change("replace", object)
    }

    pub(super) fn create(&self, object: &Value) -> anyhow::Result<()> {
        self.change("create", object)
    }

    pub(super) fn apply(&self, objects: &[Value]) -> anyhow::Result<()> {
        self.change(
            "apply",
            &json!({ "apiVersion": "v1", "kind": "List", "items": objects }),
        )
    }

    /// Prints what the client has done.
    fn change(&self, verb: &str, object: &Value) -> anyhow::Result<()> {
        print!("{}", self.send(&[verb, MANAGER, "-f", "-"], object)?);
        Ok(())
    }

    fn send(&self, words: &[&str], object: &Value) -> anyhow::Result<String> {
        let mut command = Command::new(self.program);
        command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context(self.program)?;
        if let Some(mut stdin) = child.stdin.take() {
            // A client that ends before it has read everything says why.
            let _ = stdin.write_all(object.to_string().as_bytes());
        }
        said(&child.wait_with_output()?)
    }

    fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        said(&Command::new(self.program).args(words).output()?)
    }
}

/// Output of a client; an error if it has failed.
fn said(output: &Output) -> anyhow::Result<String> {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{said}{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(said)
}
