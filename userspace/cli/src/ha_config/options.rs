//! Options of `signalbox ha-config`: those of OpenShift's proposal and of `oc adm ipfailover`.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use signalbox_core::model::labels::Selector;

/// Output forms that use Go's template language.
const TEMPLATES: [&str; 4] = ["template", "templatefile", "go-template", "go-template-file"];

/// Show a configuration of virtual addresses, as OpenShift's `ha-config` and `oc adm ipfailover` did.
///
/// Without --create, the configuration is only shown.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(verbatim_doc_comment)]
pub(crate) struct HaConfigArgs {
    /// The name of the configuration [default: ha-config-1].
    pub(super) name: Option<String>,
    /// The type of the configuration: keepalived.
    #[arg(long = "type", value_name = "TYPE", default_value = "keepalived")]
    pub(super) kind: String,
    /// Add the section to signalbox's configuration file; with `-o kubernetes`, to the cluster's, and apply all objects.
    #[arg(long)]
    pub(super) create: bool,
    /// With `-o kubernetes --create`: replace another section `ha`; with --selector, move the balancers to its nodes.
    #[arg(long, requires = "create")]
    pub(super) replace: bool,
    /// The configuration file that --create adds the section to.
    #[arg(
        long,
        env = "SIGNALBOX_CONFIG",
        value_name = "FILE",
        default_value = "/etc/signalbox/signalbox.yaml"
    )]
    pub(super) into: PathBuf,
    /// Read settings that no option gives from OPENSHIFT_HA_... variables in the environment.
    #[arg(long)]
    pub(super) from_env: bool,
    /// Leave the headers of a table out.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    pub(super) no_headers: bool,
    /// The format of the output: table, json, yaml, keepalived, systemd or kubernetes.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(super) output: String,
    /// The version of the output: v1.
    #[arg(long, value_name = "VERSION")]
    pub(super) output_version: Option<String>,
    /// A Go template: not supported, use -o json.
    #[arg(short, long, value_name = "TEMPLATE")]
    pub(super) template: Option<String>,
    /// The images of `-o kubernetes`; ${component} (signalbox, signalbox-ha) and ${version} are filled in.
    #[arg(long, value_name = "IMAGE")]
    pub(super) images: Option<String>,
    /// Use the images `latest` rather than those of this version.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    pub(super) latest_images: bool,
    /// The label selector of the nodes of `-o kubernetes`; several add up [default: ipfailover=NAME].
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Vec<String>,
    /// The namespace of `-o kubernetes` [default: signalbox].
    #[arg(long, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    /// The service account of new balancers of `-o kubernetes` [default: signalbox].
    #[arg(long, value_name = "NAME")]
    pub(super) service_account: Option<String>,
    /// The router pods of `-o kubernetes`, where no configuration names them [default: OpenShift's].
    #[arg(long, value_name = "NAMESPACE/SELECTOR")]
    pub(super) routers: Option<String>,
    /// Whether `-o kubernetes` is for OpenShift [default: as the server says; without --create, if --routers is not given].
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) openshift: Option<bool>,
    /// Replicate flows to the other nodes, with certificates in the Secret `signalbox-sync` of `-o kubernetes`
    /// [default: true with --create, if there are several nodes].
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) sync: Option<bool>,
    /// The number of nodes that the selector must match: the addresses are on each of them.
    #[arg(short, long, value_name = "COUNT")]
    pub(super) replicas: Option<u32>,
    /// The virtual addresses: addresses and ranges, separated by commas, such as 10.1.1.5-8,42.42.42.42.
    #[arg(long, value_name = "RANGES")]
    pub(super) virtual_ips: Option<String>,
    /// The number of groups that the virtual addresses are divided into [default: a group for each].
    #[arg(long, value_name = "COUNT")]
    pub(super) virtual_ip_groups: Option<String>,
    /// The interface [default: that of the default route].
    #[arg(short, long, value_name = "INTERFACE")]
    pub(super) interface: Option<String>,
    /// The port to check; 0: none [default: 80].
    #[arg(short, long, value_name = "PORT")]
    pub(super) watch_port: Option<String>,
    /// Send adverts to each node rather than to a multicast group.
    #[arg(short, long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) unicast: Option<bool>,
    /// The addresses of the nodes, separated by commas; with names as NAME=ADDRESS. Needed for unicast.
    #[arg(long, value_name = "NODES")]
    pub(super) nodes: Option<String>,
    /// The name of this node among --nodes [default: the host name].
    #[arg(long, value_name = "NAME")]
    pub(super) node: Option<String>,
    /// A program that must succeed, instead of a check of the port.
    #[arg(long, value_name = "FILE")]
    pub(super) check_script: Option<String>,
    /// Seconds between two checks [default: 2].
    #[arg(long, value_name = "SECONDS")]
    pub(super) check_interval: Option<String>,
    /// A program that is called at each change of state.
    #[arg(long, value_name = "FILE")]
    pub(super) notify_script: Option<String>,
    /// When a node takes over from another: `preempt_delay SECONDS`, nopreempt or when-synced.
    #[arg(long, value_name = "STRATEGY")]
    pub(super) preemption_strategy: Option<String>,
    /// Let VRRP in through the firewall: any chain name has this effect; an empty one lets nothing in.
    #[arg(long, value_name = "CHAIN")]
    pub(super) iptables_chain: Option<String>,
    /// The number before the first virtual router id: 0 to 254.
    #[arg(long, value_name = "OFFSET")]
    pub(super) vrrp_id_offset: Option<String>,
    /// Virtual router ids of others in the network, with commas or blanks between them.
    #[arg(long, value_name = "IDS")]
    pub(super) exclude_vrrp_ids: Option<String>,
    /// Addresses that get mail about changes, with commas between them.
    #[arg(long, value_name = "ADDRESSES")]
    pub(super) admin_emails: Option<String>,
    /// The sender of the mail.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) email_from: Option<String>,
    /// The address of the mail server.
    #[arg(long, value_name = "IP[:PORT]")]
    pub(super) smtp_server: Option<String>,
    /// The kubeconfig of old releases: not needed, a manifest names a service account.
    #[arg(long, hide = true, value_name = "FILE")]
    pub(super) credentials: Option<PathBuf>,
}

/// Form of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Table,
    Json,
    Yaml,
    Keepalived,
    Systemd,
    Kubernetes,
}

impl HaConfigArgs {
    /// Checks options without a place in the section, and returns the form of output.
    pub(super) fn checked(&self) -> anyhow::Result<Output> {
        if self.kind != "keepalived" {
            bail!("--type: `{}` is not known: it is always keepalived", self.kind);
        }
        if self.template.is_some() || TEMPLATES.contains(&self.output.as_str()) {
            bail!("Go templates are not supported: use `-o json` and a program such as jq");
        }
        if let Some(version) = self.output_version.as_deref().filter(|version| *version != "v1") {
            bail!("--output-version: `{version}` is not known: the only version is v1");
        }
        if self.replicas == Some(0) {
            bail!("--replicas: at least one node must have the addresses");
        }
        self.selected()?;
        self.router_pods()?;
        if self.output == "kubernetes" && self.node.is_some() {
            bail!("--node: all pods have one configuration, and each knows its own node");
        }
        Ok(match self.output.as_str() {
            "table" => Output::Table,
            "json" => Output::Json,
            "yaml" => Output::Yaml,
            "keepalived" => Output::Keepalived,
            "systemd" => Output::Systemd,
            "kubernetes" => Output::Kubernetes,
            other => bail!("-o: `{other}` is not table, json, yaml, keepalived, systemd or kubernetes"),
        })
    }

    /// Label selector of the nodes.
    pub(super) fn node_selector(&self) -> String {
        if self.selector.is_empty() {
            format!("ipfailover={}", self.name.as_deref().unwrap_or("ha-config-1"))
        } else {
            self.selector.join(",")
        }
    }

    pub(super) fn selected(&self) -> anyhow::Result<Selector> {
        let text = self.node_selector();
        Selector::parse(&text).with_context(|| format!("--selector: `{text}` is no label selector"))
    }

    /// Namespace and label selector of the router pods.
    pub(super) fn router_pods(&self) -> anyhow::Result<Option<(&str, &str)>> {
        let Some(text) = &self.routers else { return Ok(None) };
        let Some((namespace, selector)) = text.split_once('/').filter(|(namespace, _)| !namespace.is_empty()) else {
            bail!("--routers: `{text}` is not NAMESPACE/SELECTOR, such as ingress/app=router");
        };
        Selector::parse(selector).with_context(|| format!("--routers: `{selector}` is no label selector"))?;
        Ok(Some((namespace, selector)))
    }

    /// Nodes with their names. A node without one is named by its address.
    pub(super) fn named_nodes(&self) -> anyhow::Result<Vec<(String, IpAddr)>> {
        let texts = self
            .nodes
            .iter()
            .flat_map(|nodes| nodes.split([',', ' ']))
            .filter(|text| !text.is_empty());
        let parse = |text: &str| {
            let (name, address) = text.split_once('=').unwrap_or((text, text));
            match address.parse() {
                Ok(address) => Ok((name.replace(':', "-"), address)),
                Err(_) => bail!("--nodes: `{text}` is neither an address nor NAME=ADDRESS"),
            }
        };
        texts.map(parse).collect()
    }
}
