//! Container images: skopeo reads them, their files are those of checked-in lists, and each image's program runs in it
//! as the image's user.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::contents;
use crate::{dist::image, vm::store::quietly};

/// A file for `signalbox check` that only a system with authorities can use.
const CONFIGURATION: &str = "version: 1\nlisteners: [{ name: https, protocol: https, listen: [\"127.0.0.1:8443\"] }]\n\
                             clusters: [{ name: web, hosts: [{ name: w1, address: 10.2.0.1, https: 443 }] }]\n\
                             routes: [{ host: app.example.com, clusters: { web: 1 }, tls: { termination: reencrypt } }]\n";
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// Checks an archive, and returns how its files differ from the list; with `update` the list is written before.
pub(super) fn check(root: &Path, archive: &Path, scratch: &Path, version: &str, update: bool) -> Result<Vec<String>> {
    let image = UnpackedImage::new(archive, scratch)?;
    ensure!(
        image.facts["Digest"] == image::digest(archive)?,
        "skopeo says that {} is {}",
        archive.display(),
        image.facts["Digest"]
    );
    let label = &image.facts["Labels"]["org.opencontainers.image.version"];
    ensure!(*label == version, "the image's version is {label}");
    image.runs_signalbox()?;
    let is_ha = image.facts["Labels"]["org.opencontainers.image.title"] == "signalbox-ha";
    if is_ha {
        image.runs_keepalived()?;
    }
    let list = if is_ha { "files-ha.txt" } else { "files.txt" };
    let last = image.layers.last().context("the image has no layer")?;
    contents::compare(
        root,
        &root.join("packaging/container").join(list),
        &files(last)?,
        update,
    )
}

/// An image whose layers are unpacked one over the other.
struct UnpackedImage {
    /// Answer of `skopeo inspect`.
    facts: Value,
    user: String,
    layers: Vec<PathBuf>,
    root: PathBuf,
}

impl UnpackedImage {
    fn new(archive: &Path, scratch: &Path) -> Result<Self> {
        let (copied, root) = (scratch.join("image"), scratch.join("image-root"));
        for directory in [&copied, &root] {
            if directory.exists() {
                fs::remove_dir_all(directory)?;
            }
        }
        fs::create_dir_all(&root)?;
        let source = format!("oci-archive:{}", archive.display());
        // Copying compares all digests with the contents.
        let mut copy = Command::new("skopeo");
        copy.args(["--insecure-policy", "copy", "--quiet", &source]);
        quietly(copy.arg(format!("oci:{}:copy", copied.display())))?;
        let facts = inspect(&[&source])?;
        let user = inspect(&["--config", &source])?["config"]["User"].clone();
        let digests = facts["Layers"].as_array().cloned().unwrap_or_default();
        let blobs = copied.join("blobs/sha256");
        let layers: Vec<PathBuf> = digests
            .iter()
            .filter_map(|digest| Some(blobs.join(digest.as_str()?.strip_prefix("sha256:")?)))
            .collect();
        for layer in &layers {
            let mut extract = Command::new("tar");
            extract.args(["--extract", "--gzip", "--numeric-owner", "--preserve-permissions"]);
            quietly(extract.arg("--file").arg(layer).arg("--directory").arg(&root))?;
        }
        Ok(Self {
            facts,
            user: user.as_str().context("the image names no user")?.to_owned(),
            layers,
            root,
        })
    }

    /// A command in the image, with its environment.
    fn command(&self, user: &str, words: &[&str]) -> Command {
        let mut command = Command::new("/usr/sbin/chroot");
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin");
        command.arg(format!("--userspec={user}")).arg(&self.root).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        quietly(&mut self.command(&self.user, words))
    }

    fn runs_signalbox(&self) -> Result<()> {
        let said = self.run(&["signalbox", "--version"])?;
        ensure!(said.starts_with("signalbox "), "signalbox says {said}");
        for program in ["nft", "iptables-nft-save", "ip6tables-nft-save"] {
            self.run(&[program, "--version"])?;
        }
        fs::write(self.root.join("etc/signalbox/signalbox.yaml"), CONFIGURATION)?;
        let check = [
            "signalbox",
            "check",
            "--strict",
            "--config",
            "/etc/signalbox/signalbox.yaml",
        ];
        self.run(&check)?;
        let (there, away) = (self.root.join(AUTHORITIES), self.root.join("tmp/authorities"));
        fs::rename(&there, &away)?;
        ensure!(
            self.run(&check).is_err(),
            "`signalbox check` does not need the image's authorities"
        );
        fs::rename(&away, &there)?;
        let mut user = Command::new("stat");
        user.args(["--format=%u:%g"]).arg(self.root.join("var/lib/signalbox"));
        let owner = quietly(&mut user)?;
        ensure!(owner.trim() == self.user, "/var/lib/signalbox belongs to {owner}");
        Ok(())
    }

    /// keepalived accepts the configuration that signalbox writes, and the programs that signalbox runs find their
    /// files.
    fn runs_keepalived(&self) -> Result<()> {
        let addresses = self.run(&["ip", "-json", "address", "show"])?;
        let addresses: Value = serde_json::from_str(&addresses)?;
        ensure!(addresses.is_array(), "`ip` says {addresses}");
        let configuration = self.run(&[
            "signalbox",
            "ha-config",
            "--virtual-ips=10.1.0.101",
            "--interface=v0",
            "--output=keepalived",
        ])?;
        fs::write(self.root.join("tmp/keepalived.conf"), configuration)?;
        let script = "ip link add v0 type veth peer name v1 && ip link set v0 up && exec chroot \"$0\" keepalived \
                      --config-test --use-file=/tmp/keepalived.conf";
        let mut test = Command::new("unshare");
        test.args(["--net", "sh", "-c", script]).arg(&self.root);
        quietly(&mut test)?;
        fs::write(self.root.join("tmp/keepalived.conf"), "vrrp_instance x {\n")?;
        ensure!(
            quietly(&mut test).is_err(),
            "keepalived accepts an invalid configuration"
        );
        Ok(())
    }
}

fn inspect(words: &[&str]) -> Result<Value> {
    let said = quietly(Command::new("skopeo").arg("inspect").args(words))?;
    serde_json::from_str(&said).context("skopeo has written no JSON")
}

/// Files of a layer, a line each.
fn files(layer: &Path) -> Result<String> {
    let mut list = Command::new("tar");
    list.args(["--list", "--verbose", "--gzip", "--numeric-owner"]);
    // As in packages, where paths begin with a dot.
    list.args(["--transform=s,^,./,", "--show-transformed-names"]);
    Ok(contents::lines_of_tar(&quietly(list.arg("--file").arg(layer))?))
}
