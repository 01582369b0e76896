//! Certificates of a cluster, and the kubeconfigs of its programs.

use std::{fs, path::Path, process::Command};

use anyhow::Result;
use serde_json::json;

use super::network;
use crate::vm::store::quietly;

/// Address of the Service `kubernetes`, the first of the range of Services.
pub(super) const SERVICE: &str = "10.96.0.1";

/// Programs that have a kubeconfig, by its name; their subjects are their rights.
const CLIENTS: [(&str, &str); 4] = [
    ("admin", "/O=system:masters/CN=admin"),
    ("controller-manager", "/CN=system:kube-controller-manager"),
    ("scheduler", "/CN=system:kube-scheduler"),
    ("proxy", "/CN=system:kube-proxy"),
];
/// Without it openssl adds extensions of its own.
const CONFIGURATION: &str = "[req]\ndistinguished_name = names\n[names]\n";

pub(super) fn write(dir: &Path, nodes: u8) -> Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("openssl.cnf"), CONFIGURATION)?;
    certificate(
        dir,
        "ca",
        "/CN=signalbox cluster lab",
        &["basicConstraints=critical,CA:TRUE"],
    )?;
    let (plane, service) = (network::PLANE, SERVICE);
    let names = format!("IP:{plane},IP:{service},IP:127.0.0.1,DNS:kubernetes,DNS:kubernetes.default.svc");
    sign(dir, "apiserver", "/CN=kube-apiserver", Some(&names))?;
    for (name, subject) in CLIENTS {
        sign(dir, name, subject, None)?;
        write_kubeconfig(dir, name)?;
    }
    for number in 1..=nodes {
        let name = format!("n{number}");
        let subject = format!("/O=system:nodes/CN=system:node:{name}");
        let names = format!("DNS:{name},IP:{}", network::address(number));
        sign(dir, &name, &subject, Some(&names))?;
        write_kubeconfig(dir, &name)?;
    }
    // The tokens of service accounts.
    openssl(
        dir,
        &[
            "ecparam",
            "-genkey",
            "-noout",
            "-name",
            "prime256v1",
            "-out",
            "accounts.key",
        ],
    )?;
    openssl(dir, &["ec", "-in", "accounts.key", "-pubout", "-out", "accounts.pub"])
}

/// A certificate of the cluster's authority, for a server if it has names.
fn sign(dir: &Path, name: &str, subject: &str, names: Option<&str>) -> Result<()> {
    let names = names.map(|names| format!("subjectAltName={names}"));
    let mut extensions = vec!["extendedKeyUsage=serverAuth,clientAuth"];
    extensions.extend(names.as_deref());
    certificate(dir, name, subject, &extensions)
}

fn certificate(dir: &Path, name: &str, subject: &str, extensions: &[&str]) -> Result<()> {
    let (key, file) = (format!("{name}.key"), format!("{name}.pem"));
    let mut words = vec![
        "req",
        "-x509",
        "-config",
        "openssl.cnf",
        "-days",
        "30",
        "-nodes",
        "-newkey",
        "ec",
    ];
    words.extend(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", subject]);
    words.extend(["-keyout", &key, "-out", &file]);
    if name != "ca" {
        words.extend(["-CA", "ca.pem", "-CAkey", "ca.key"]);
    }
    words.extend(extensions.iter().flat_map(|extension| ["-addext", extension]));
    openssl(dir, &words)
}

fn openssl(dir: &Path, words: &[&str]) -> Result<()> {
    quietly(Command::new("openssl").args(words).current_dir(dir)).map(drop)
}

fn write_kubeconfig(dir: &Path, user: &str) -> Result<()> {
    let file = |name: &str| dir.join(name).display().to_string();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{ "name": "lab", "cluster": {
            "server": format!("https://{}", network::PLANE), "certificate-authority": file("ca.pem"),
        } }],
        "users": [{ "name": user, "user": {
            "client-certificate": file(&format!("{user}.pem")), "client-key": file(&format!("{user}.key")),
        } }],
        "contexts": [{ "name": "lab", "context": { "cluster": "lab", "user": user } }],
    });
    fs::write(dir.join(format!("{user}.kubeconfig")), kubeconfig.to_string())?;
    Ok(())
}
