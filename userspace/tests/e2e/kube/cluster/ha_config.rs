//! `signalbox ha-config -o kubernetes --create`: the one command of OpenShift's proposal.

use std::path::PathBuf;
use std::process::Output;

use serde_json::json;

use super::addresses::await_synced;
use super::{Cluster, POD_TIMEOUT, ingress};
use crate::lab::eventually;

/// The lab's name for the images, which no registry has.
const IMAGES: &str = "--images=image-registry.example.com/${component}:${version}";

mod share_12 {
    use super::*;

    #[test]
    fn one_command_sets_up_vips_and_a_repeat_changes_nothing() {
        const NAME: &str = "one_command_sets_up_vips_and_a_repeat_changes_nothing";
        let Some(cluster) = Cluster::start(NAME, "haconfig", 3) else {
            return;
        };
        // Each mistake has an error that says what to do, and nothing is made.
        let with_images = ["--virtual-ips=10.77.0.201-202", IMAGES];
        says(&cluster, &with_images, "kubectl label node NAME ipfailover=west");
        cluster.kubectl(&["label", "node", "n1", "n2", "ipfailover=west"]);
        says(&cluster, &with_images[..1], "--images is missing");
        says(&cluster, &with_images, "--routers is missing");
        let words = [&with_images[..], &["--routers=ingress/app=router", "--interface=eth0"]].concat();
        says(
            &cluster,
            &[&words[..], &["--replicas=3"]].concat(),
            "2 nodes have the labels",
        );
        let made = cluster.task(&["kubectl", "get", "namespace", "signalbox"]);
        assert!(!made.status.success());

        let made = create(&cluster, &words);
        assert!(made.contains("daemonset.apps/signalbox created"), "{made}");
        cluster.await_rollout("daemonset/signalbox");
        cluster.kubectl(&["create", "namespace", "shop"]);
        cluster.apply_text(&ingress("web", "web.test"));
        for vip in ["10.77.0.201", "10.77.0.202"] {
            cluster.serves(vip, "web.test");
        }
        await_synced(&cluster);

        let pods = cluster.pods();
        let again = create(&cluster, &words);
        assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
        let secret = cluster.json(&["-n", "signalbox", "get", "secret", "signalbox-sync"]);
        assert_eq!(
            secret["metadata"]["annotations"],
            json!({ "signalbox.io/nodes": "n1,n2" }),
            "the key is copied"
        );
        // A longer list has to be asked for, and needs no new pods.
        let longer = [&words[1..], &["--virtual-ips=10.77.0.201-203"]].concat();
        says(&cluster, &longer, "has another section `ha`");
        create(&cluster, &[&longer[..], &["--replace"]].concat());
        cluster.serves("10.77.0.203", "web.test");
        assert_eq!(cluster.pods(), pods);

        cluster.must(&["kill", "n1"]);
        for vip in ["10.77.0.201", "10.77.0.202", "10.77.0.203"] {
            cluster.serves(vip, "web.test");
        }
        cluster.end();
    }

    #[test]
    fn ha_config_keeps_running_balancers_nodes_and_configuration() {
        const NAME: &str = "ha_config_keeps_running_balancers_nodes_and_configuration";
        let Some(cluster) = Cluster::start(NAME, "beside", 3) else {
            return;
        };
        cluster.must(&["apply", "plain"]);
        cluster.await_rollout("daemonset/signalbox");
        let own = r#"{"spec":{"template":{"spec":{"tolerations":[{"key":"own","operator":"Exists"}]}}}}"#;
        cluster.kubectl(&[
            "-n",
            "signalbox",
            "patch",
            "daemonset",
            "signalbox",
            "--type=merge",
            "-p",
            own,
        ]);
        let words = ["--virtual-ips=10.77.0.201", IMAGES, "--interface=eth0"];
        let elsewhere = [&words[..], &["--selector=region in (west,east),!old"]].concat();
        cluster.kubectl(&["label", "node", "n2", "region=west"]);
        says(&cluster, &elsewhere, "balancers run on other nodes");
        create(&cluster, &words);
        cluster.await_rollout("daemonset/signalbox");
        assert_eq!(cluster.pods().len(), 2);
        let set = cluster.json(&["-n", "signalbox", "get", "daemonset", "signalbox"]);
        assert_eq!(set["spec"]["template"]["spec"]["tolerations"][0]["key"], "own");
        let map = cluster.json(&["-n", "signalbox", "get", "configmap", "signalbox"]);
        let text = map["data"]["signalbox.yaml"].as_str().unwrap();
        let packaged = include_str!("../../../../../packaging/k8s/overlays/plain/signalbox.yaml");
        assert!(
            text.starts_with(packaged) && text.contains("vips: [\"10.77.0.201\"]"),
            "{text}"
        );
        cluster.kubectl(&["create", "namespace", "shop"]);
        cluster.apply_text(&ingress("web", "web.test"));
        cluster.serves("10.77.0.201", "web.test");

        // Another list of addresses moves no balancer.
        let pods = cluster.pods();
        create(
            &cluster,
            &["--virtual-ips=10.77.0.201-202", words[1], words[2], "--replace"],
        );
        assert_eq!(cluster.pods(), pods);
        create(&cluster, &[&elsewhere[..], &["--replace"]].concat());
        assert!(
            eventually(POD_TIMEOUT, || cluster.pods().len() == 1),
            "{:?}",
            cluster.pods()
        );
        cluster.await_rollout("daemonset/signalbox");
        cluster.serves("10.77.0.201", "web.test");
        cluster.end();
    }
}

/// Calls `ha-config --create` as an administrator who is logged in to the cluster.
fn call(cluster: &Cluster, words: &[&str]) -> Output {
    let of = |variable| PathBuf::from(std::env::var_os(variable).unwrap());
    let mut command = cluster.ns("cp").command(of("SIGNALBOX_BIN"));
    command
        .args(["ha-config", "west", "-o", "kubernetes", "--create"])
        .args(words);
    command.env("KUBECONFIG", cluster.files().join("pki/admin.kubeconfig"));
    let kubectl = of("SIGNALBOX_KUBE_BIN").join("node/usr/bin");
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", kubectl.display()));
    command.output().unwrap()
}

#[track_caller]
fn create(cluster: &Cluster, words: &[&str]) -> String {
    let output = call(cluster, words);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{words:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

/// The command fails, and says why.
#[track_caller]
fn says(cluster: &Cluster, words: &[&str], part: &str) {
    let output = call(cluster, words);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && wrong.contains(part), "{words:?}: {wrong}");
}
