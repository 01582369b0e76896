//! Section `ha` of a configuration, built from options.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};
use signalbox_core::model::HighAvailability;

use super::options::HaConfigArgs;
use signalbox_config as config;

/// Keys of the section in the order of the documentation.
const KEY_ORDER: [&str; 14] = [
    "name",
    "mode",
    "node",
    "nodes",
    "interface",
    "vips",
    "groups",
    "watch",
    "preemption",
    "vrrp",
    "notify",
    "firewall",
    "email",
    "sync",
];

/// Paths of the section, and their options.
const OPTIONS: [(&str, &str); 15] = [
    ("name", "NAME"),
    ("nodes", "--nodes"),
    ("node", "--node"),
    ("interface", "--interface"),
    ("vips", "--virtual-ips"),
    ("groups", "--virtual-ip-groups"),
    ("watch.port", "--watch-port"),
    ("watch.script", "--check-script"),
    ("watch.interval", "--check-interval"),
    ("notify", "--notify-script"),
    ("preemption", "--preemption-strategy"),
    ("vrrp.id_offset", "--vrrp-id-offset"),
    ("vrrp.exclude_ids", "--exclude-vrrp-ids"),
    ("email", "--admin-emails, --email-from, --smtp-server"),
    ("sync", "--sync"),
];

/// Default sender of mail, the same as OpenShift's.
const DEFAULT_SENDER: &str = "ipfailover@openshift.local";
const DEFAULT_WATCH_PORT: &str = "80";

/// Builds the section, and the model for it. Warnings go to standard error.
pub(super) fn build(args: &HaConfigArgs) -> anyhow::Result<(Value, HighAvailability)> {
    if args.virtual_ips.is_none() {
        bail!("--virtual-ips is missing: addresses and ranges, such as 10.1.1.5-8,42.42.42.42");
    }
    let section = section(args)?;
    let (ha, oddities) = match config::ha::parse(&section.to_string()) {
        Ok(parsed) => parsed,
        Err(errors) => {
            let lines: Vec<_> = errors
                .iter()
                .map(|error| format!("{}{}", option(&error.path), error.message))
                .collect();
            bail!("{}", lines.join("\n"));
        }
    };
    for oddity in oddities {
        eprintln!("warning: {}{}", option(&oddity.path), oddity.message);
    }
    Ok((section, ha))
}

/// Reads the section of signalbox's configuration file, to show it.
pub(super) fn read(file: &Path) -> anyhow::Result<(Value, HighAvailability)> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => bail!(
            "--virtual-ips is missing, and there is nothing to show: {}: {error}",
            file.display()
        ),
    };
    let parsed = config::parse(&text).map_err(|errors| anyhow::Error::msg(errors.with_file(file).to_string()))?;
    let Some(ha) = parsed.model.ha else {
        bail!(
            "--virtual-ips is missing, and there is nothing to show: {} has no section `ha`",
            file.display()
        );
    };
    let document =
        signalbox_core::wire::yaml::read_json(&text).with_context(|| format!("reading {}", file.display()))?;
    Ok((document.get("ha").cloned().unwrap_or_default(), ha))
}

/// Option for a path, as the beginning of a message.
fn option(path: &str) -> String {
    let found = OPTIONS.iter().find(|(key, _)| path.starts_with(key));
    found.map_or_else(String::new, |(_, option)| format!("{option}: "))
}

fn section(args: &HaConfigArgs) -> anyhow::Result<Value> {
    let mut section = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            section.insert(key.to_owned(), value);
        }
    };
    put("name", args.name.clone().map(Value::from));
    put("node", args.node.clone().map(Value::from));
    let nodes = args.named_nodes()?;
    let nodes: Vec<_> = nodes
        .iter()
        .map(|(name, address)| json!({ "name": name, "address": address }))
        .collect();
    put("nodes", (!nodes.is_empty()).then(|| nodes.into()));
    put("interface", args.interface.clone().map(Value::from));
    let vips = args.virtual_ips.iter().flat_map(|vips| vips.split(','));
    put("vips", Some(vips.map(str::trim).collect()));
    put(
        "groups",
        args.virtual_ip_groups
            .as_deref()
            .filter(|count| *count != "0")
            .map(number),
    );
    put("watch", Some(watch(args)));
    put("preemption", args.preemption_strategy.clone().map(Value::from));
    put("vrrp", vrrp(args));
    put("notify", args.notify_script.clone().map(Value::from));
    let opens = args.iptables_chain.as_deref().is_some_and(|chain| !chain.is_empty());
    put("firewall", opens.then(|| "accept".into()));
    put("email", email(args));
    put("sync", args.sync.filter(|sync| *sync).map(|_| sync()));
    Ok(section.into())
}

fn watch(args: &HaConfigArgs) -> Value {
    let mut watch = Map::new();
    match &args.check_script {
        Some(script) => watch.insert("script".to_owned(), script.clone().into()),
        None => watch.insert(
            "port".to_owned(),
            number(args.watch_port.as_deref().unwrap_or(DEFAULT_WATCH_PORT)),
        ),
    };
    if let Some(interval) = &args.check_interval {
        // Seconds, in OpenShift's format.
        let is_number = interval.bytes().all(|b| b.is_ascii_digit());
        let interval = if is_number {
            format!("{interval}s")
        } else {
            interval.clone()
        };
        watch.insert("interval".to_owned(), interval.into());
    }
    watch.into()
}

fn vrrp(args: &HaConfigArgs) -> Option<Value> {
    let mut vrrp = Map::new();
    if let Some(unicast) = args.unicast {
        vrrp.insert("unicast".to_owned(), unicast.into());
    }
    if let Some(offset) = &args.vrrp_id_offset {
        vrrp.insert("id_offset".to_owned(), number(offset));
    }
    if let Some(ids) = &args.exclude_vrrp_ids {
        let ids = ids.split([',', ' ']).filter(|id| !id.is_empty());
        vrrp.insert("exclude_ids".to_owned(), ids.map(number).collect());
    }
    (!vrrp.is_empty()).then(|| vrrp.into())
}

fn email(args: &HaConfigArgs) -> Option<Value> {
    let to: Vec<_> = args
        .admin_emails
        .as_ref()?
        .split([',', ' '])
        .filter(|to| !to.is_empty())
        .collect();
    let mut email = Map::new();
    email.insert("to".to_owned(), to.into());
    email.insert(
        "from".to_owned(),
        args.email_from.as_deref().unwrap_or(DEFAULT_SENDER).into(),
    );
    if let Some(server) = &args.smtp_server {
        email.insert("smtp".to_owned(), server.clone().into());
    }
    Some(email.into())
}

/// Replication by the certificates that the packaged manifests mount.
fn sync() -> Value {
    let file = |name: &str| format!("/etc/signalbox-sync/{name}");
    json!({ "listen": "0.0.0.0:8090", "cert": file("tls.crt"), "key": file("tls.key"), "ca": file("ca.crt") })
}

/// A number, or the text unchanged, which the parser then refuses.
fn number(text: &str) -> Value {
    text.trim().parse::<u32>().map_or_else(|_| text.into(), Value::from)
}

/// A configuration with this section in place of its own, or at its end. Everything else stays as it is written.
pub(super) fn put(text: &str, section: &Value) -> anyhow::Result<String> {
    let document = signalbox_core::wire::yaml::read_json(text).context("reading the configuration")?;
    if document.get("ha") == Some(section) {
        return Ok(text.to_owned());
    }
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.iter().position(|line| line.starts_with("ha:"));
    if from.is_none() && document.get("ha").is_some() {
        bail!("the section `ha` of the configuration does not begin a line: remove it first");
    }
    let from = from.unwrap_or(lines.len());
    // Its lines are indented, the next key is not. Comments before that key are the key's.
    let is_key = |line: &&str| !line.is_empty() && !line.starts_with([' ', '\t', '#']);
    let end = lines
        .iter()
        .skip(from + 1)
        .position(is_key)
        .map_or(lines.len(), |at| from + 1 + at);
    let of_section = lines.get(from..end).unwrap_or_default();
    let last = of_section.iter().rposition(|line| line.starts_with([' ', '\t', 'h']));
    let rest = lines
        .get(last.map_or(end, |last| from + last + 1)..)
        .unwrap_or_default();
    let before = lines.get(..from).unwrap_or_default().join("\n");
    let before = before.trim_end();
    let after = rest.join("\n");
    let after = if after.is_empty() { after } else { format!("{after}\n") };
    let put = format!("{before}\n{}{after}", yaml(section)?);
    let (mut expected, read) = (document, signalbox_core::wire::yaml::read_json(&put));
    if expected.is_null() {
        expected = json!({});
    }
    if let Some(expected) = expected.as_object_mut() {
        expected.insert("ha".to_owned(), section.clone());
    }
    if read.ok() != Some(expected) {
        bail!("the section `ha` cannot be put in the place of the other: remove that from the configuration first");
    }
    Ok(put)
}

/// YAML of the section, with its keys in the order of the documentation.
pub(super) fn yaml(section: &Value) -> anyhow::Result<String> {
    let mut text = "ha:\n".to_owned();
    for key in KEY_ORDER {
        let Some(value) = section.get(key) else { continue };
        // A line of JSON is also YAML.
        let value = match value {
            Value::String(text) if is_plain(text) => text.clone(),
            other => serde_json::to_string(other).context("writing the section")?,
        };
        text += &format!("  {key}: {value}\n");
    }
    Ok(text)
}

fn is_plain(text: &str) -> bool {
    /// Not texts in YAML.
    const OTHERS: [&str; 3] = ["true", "false", "null"];
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'/' | b'.');
    text.bytes()
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'/')
        && text.bytes().all(allowed)
        && !OTHERS.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> HaConfigArgs {
        HaConfigArgs {
            virtual_ips: Some("10.1.1.5-8, 42.42.42.42".to_owned()),
            ..HaConfigArgs::default()
        }
    }

    #[test]
    fn the_section_is_what_the_options_say() {
        let full = HaConfigArgs {
            name: Some("router-west".to_owned()),
            virtual_ip_groups: Some("2".to_owned()),
            interface: Some("eth0".to_owned()),
            watch_port: Some("0".to_owned()),
            check_interval: Some("3".to_owned()),
            unicast: Some(true),
            nodes: Some("node-a=10.1.0.11,10.1.0.12".to_owned()),
            notify_script: Some("/etc/notify".to_owned()),
            preemption_strategy: Some("preempt_delay 300".to_owned()),
            iptables_chain: Some("INPUT".to_owned()),
            vrrp_id_offset: Some("10".to_owned()),
            exclude_vrrp_ids: Some("11 13".to_owned()),
            admin_emails: Some("root@localhost".to_owned()),
            ..args()
        };
        let expected = r#"ha:
  name: router-west
  nodes: [{"address":"10.1.0.11","name":"node-a"},{"address":"10.1.0.12","name":"10.1.0.12"}]
  interface: eth0
  vips: ["10.1.1.5-8","42.42.42.42"]
  groups: 2
  watch: {"interval":"3s","port":0}
  preemption: "preempt_delay 300"
  vrrp: {"exclude_ids":[11,13],"id_offset":10,"unicast":true}
  notify: /etc/notify
  firewall: accept
  email: {"from":"ipfailover@openshift.local","to":["root@localhost"]}
"#;
        let (section, ha) = build(&full).unwrap();
        let text = yaml(&section).unwrap();
        assert_eq!(text, expected);
        let root = format!("{{\"ha\": {section}}}");
        assert!(root.contains("router-west"));
        let body = text.strip_prefix("ha:\n").unwrap();
        assert_eq!(
            config::ha::parse(body).unwrap().0,
            ha,
            "what is shown means what was parsed"
        );
        let (_, plain) = build(&args()).unwrap();
        assert_eq!(
            (plain.name.as_str(), plain.watch.port, plain.groups.len()),
            ("ha-config-1", 80, 5)
        );
    }

    #[test]
    fn a_new_section_replaces_the_old_one_and_nothing_else_changes() {
        let section = json!({ "name": "west", "vips": ["10.1.1.5"] });
        let new = "ha:\n  name: west\n  vips: [\"10.1.1.5\"]\n";
        for (before, after) in [
            ("version: 1\n", format!("version: 1\n{new}")),
            ("# a\nversion: 1\n\n\n", format!("# a\nversion: 1\n{new}")),
            (
                "version: 1\nha: { name: old }\nlog: {} # b\n",
                format!("version: 1\n{new}log: {{}} # b\n"),
            ),
            (
                "ha:\n  name: old\n# of the addresses\n\n  vips: [10.1.1.6]\n# of the log\nlog: {}\n",
                format!("{new}# of the log\nlog: {{}}\n"),
            ),
            (
                "ha:\n  vips: [10.1.1.5]\n  name: west # the same\n",
                "ha:\n  vips: [10.1.1.5]\n  name: west # the same\n".to_owned(),
            ),
        ] {
            assert_eq!(put(before, &section).unwrap().trim_start(), after, "{before}");
        }
        assert!(put("{ version: 1, ha: { name: old } }", &section).is_err());
        assert!(put("version: [", &section).is_err());
    }

    #[test]
    fn mistakes_name_the_option() {
        let problem = |args: HaConfigArgs| build(&args).unwrap_err().to_string();
        assert!(problem(HaConfigArgs::default()).contains("--virtual-ips is missing"));
        let wrong = HaConfigArgs {
            virtual_ips: Some("10.1.1.8-5".to_owned()),
            watch_port: Some("http".to_owned()),
            vrrp_id_offset: Some("255".to_owned()),
            ..args()
        };
        let problem = problem(wrong);
        for part in [
            "--virtual-ips: invalid IP range",
            "--watch-port: `http`",
            "--vrrp-id-offset: `255`",
        ] {
            assert!(problem.contains(part), "{part}: {problem}");
        }
    }
}
