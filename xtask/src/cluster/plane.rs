//! Control plane of a cluster: etcd, API server, controller manager and scheduler.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use super::{Cluster, eventually, network, process};
use crate::exec::find_program;

const ETCD: &str = "http://127.0.0.1:2379";

pub(super) fn start(cluster: &Cluster) -> Result<()> {
    let etcd = find_program("etcd").context("there is no etcd; on Debian: apt-get install etcd-server")?;
    let mut command = cluster.command_in("cp", etcd);
    command.arg("--data-dir").arg(cluster.dir.join("etcd"));
    command.args(["--listen-client-urls", ETCD, "--advertise-client-urls", ETCD]);
    // A cluster that is thrown away needs no disk that is safe.
    command.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--unsafe-no-fsync"]);
    process::start(&cluster.dir, "etcd", &command, true)?;

    let mut server = process::start(&cluster.dir, "kube-apiserver", &api_server(cluster), true)?;
    eventually("the API server is not ready, see its log", || {
        ensure!(
            server.try_wait()?.is_none(),
            "the API server has ended: {}",
            log(cluster, "kube-apiserver")
        );
        Ok(cluster.kubectl().args(["get", "--raw", "/readyz"]).output().is_ok())
    })?;
    process::start(
        &cluster.dir,
        "kube-controller-manager",
        &controller_manager(cluster),
        true,
    )?;
    let mut scheduler = program(cluster, "kube-scheduler");
    scheduler.arg(format!("--kubeconfig={}", pki(cluster, "scheduler.kubeconfig")));
    scheduler.args(["--leader-elect=false", "--bind-address=127.0.0.1"]);
    process::start(&cluster.dir, "kube-scheduler", &scheduler, true)?;
    Ok(())
}

fn program(cluster: &Cluster, name: &str) -> Command {
    cluster.command_in("cp", cluster.programs.join(name))
}

fn pki(cluster: &Cluster, file: &str) -> String {
    cluster.dir.join("pki").join(file).display().to_string()
}

fn api_server(cluster: &Cluster) -> Command {
    let file = |name: &str| pki(cluster, name);
    let mut command = program(cluster, "kube-apiserver");
    command.arg(format!("--etcd-servers={ETCD}"));
    command.args(["--secure-port=443", "--bind-address=0.0.0.0"]);
    command.arg(format!("--advertise-address={}", network::PLANE));
    command.arg("--service-cluster-ip-range=10.96.0.0/16");
    command.arg(format!("--tls-cert-file={}", file("apiserver.pem")));
    command.arg(format!("--tls-private-key-file={}", file("apiserver.key")));
    command.arg(format!("--client-ca-file={}", file("ca.pem")));
    command.arg(format!("--kubelet-client-certificate={}", file("admin.pem")));
    command.arg(format!("--kubelet-client-key={}", file("admin.key")));
    command.arg(format!("--kubelet-certificate-authority={}", file("ca.pem")));
    // Nodes have no names that a resolver knows.
    command.arg("--kubelet-preferred-address-types=InternalIP");
    command.arg(format!("--service-account-key-file={}", file("accounts.pub")));
    command.arg(format!("--service-account-signing-key-file={}", file("accounts.key")));
    command.args([
        "--service-account-issuer=https://kubernetes.default.svc",
        "--api-audiences=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    ]);
    command.arg(format!("--audit-log-path={}", cluster.dir.join("audit.log").display()));
    let policy = cluster.dir.join("audit.yaml");
    // Records the requests of all accounts, without their contents.
    let text =
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{ level: Metadata }]\nomitStages: [RequestReceived]\n";
    if fs::write(&policy, text).is_ok() {
        command.arg(format!("--audit-policy-file={}", policy.display()));
    }
    command
}

fn controller_manager(cluster: &Cluster) -> Command {
    let mut command = program(cluster, "kube-controller-manager");
    command.arg(format!(
        "--kubeconfig={}",
        pki(cluster, "controller-manager.kubeconfig")
    ));
    command.arg(format!(
        "--service-account-private-key-file={}",
        pki(cluster, "accounts.key")
    ));
    command.arg(format!("--root-ca-file={}", pki(cluster, "ca.pem")));
    command.args([
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        // Sooner than by default, so that tests see what a dead node does.
        "--node-monitor-period=2s",
        "--node-monitor-grace-period=12s",
        "--pod-eviction-timeout=20s",
    ]);
    command
}

fn log(cluster: &Cluster, name: &str) -> String {
    let text = fs::read_to_string(cluster.dir.join(format!("{name}.log"))).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
