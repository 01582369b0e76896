//! Variables of OpenShift's ipfailover image, used for missing options.

use anyhow::bail;

use super::options::HaConfigArgs;

/// Reads variables with `get`. A variable without a value counts as missing.
pub(super) fn complete(mut args: HaConfigArgs, get: impl Fn(&str) -> Option<String>) -> anyhow::Result<HaConfigArgs> {
    let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
    let of = |name: &str| get(&format!("OPENSHIFT_HA_{name}"));
    let fill = |place: &mut Option<String>, name: &str| {
        if place.is_none() {
            *place = of(name);
        }
    };
    fill(&mut args.name, "CONFIG_NAME");
    if args.selector.is_empty() {
        args.selector.extend(of("SELECTOR"));
    }
    fill(&mut args.virtual_ips, "VIRTUAL_IPS");
    fill(&mut args.virtual_ip_groups, "VIP_GROUPS");
    fill(&mut args.interface, "NETWORK_INTERFACE");
    fill(&mut args.watch_port, "MONITOR_PORT");
    fill(&mut args.vrrp_id_offset, "VRRP_ID_OFFSET");
    fill(&mut args.iptables_chain, "NFTABLES_RULE");
    fill(&mut args.iptables_chain, "IPTABLES_CHAIN");
    fill(&mut args.check_script, "CHECK_SCRIPT");
    fill(&mut args.check_interval, "CHECK_INTERVAL");
    fill(&mut args.notify_script, "NOTIFY_SCRIPT");
    fill(&mut args.preemption_strategy, "PREEMPTION");
    fill(&mut args.admin_emails, "ADMIN_EMAILS");
    fill(&mut args.smtp_server, "SMTP_SERVER");
    if args.exclude_vrrp_ids.is_none() {
        args.exclude_vrrp_ids = get("HA_EXCLUDED_VRRP_IDS");
    }
    if args.email_from.is_none() {
        args.email_from = get("EMAIL_FROM");
    }
    if let (None, Some(text)) = (args.replicas, of("REPLICA_COUNT")) {
        match text.trim().parse() {
            Ok(count) => args.replicas = Some(count),
            Err(_) => bail!("OPENSHIFT_HA_REPLICA_COUNT: `{text}` is not a whole number"),
        }
    }
    if let (None, Some(text)) = (args.unicast, of("USE_UNICAST")) {
        args.unicast = match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" => Some(true),
            "false" | "0" | "no" => Some(false),
            _ => bail!("OPENSHIFT_HA_USE_UNICAST: `{text}` is neither true nor false"),
        };
    }
    if let (None, Some(peers)) = (&args.nodes, of("UNICAST_PEERS")) {
        args.nodes = Some(peers);
        // OpenShift's generator reads no other variable.
        args.unicast.get_or_insert(true);
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_before_variables() {
        let variables = [
            ("OPENSHIFT_HA_CONFIG_NAME", "west"),
            ("OPENSHIFT_HA_VIRTUAL_IPS", "10.1.1.5-8"),
            ("OPENSHIFT_HA_MONITOR_PORT", "0"),
            ("OPENSHIFT_HA_USE_UNICAST", "true"),
            ("OPENSHIFT_HA_CHECK_SCRIPT", ""),
            ("OPENSHIFT_HA_REPLICA_COUNT", "3"),
            ("HA_EXCLUDED_VRRP_IDS", "11 13"),
        ];
        let get = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let given = HaConfigArgs {
            watch_port: Some("8080".to_owned()),
            ..HaConfigArgs::default()
        };
        let args = complete(given, get).unwrap();
        assert_eq!(
            (args.name.as_deref(), args.virtual_ips.as_deref()),
            (Some("west"), Some("10.1.1.5-8"))
        );
        assert_eq!((args.watch_port.as_deref(), args.check_script), (Some("8080"), None));
        assert_eq!((args.unicast, args.replicas), (Some(true), Some(3)));
        assert_eq!(args.exclude_vrrp_ids.as_deref(), Some("11 13"));
    }

    #[test]
    fn peers_are_reached_by_unicast_unless_it_is_forbidden() {
        for (use_unicast, expected) in [("", true), ("true", true), ("false", false)] {
            let get = |name: &str| match name {
                "OPENSHIFT_HA_UNICAST_PEERS" => Some("10.1.0.12".to_owned()),
                "OPENSHIFT_HA_USE_UNICAST" => Some(use_unicast.to_owned()),
                _ => None,
            };
            let args = complete(HaConfigArgs::default(), get).unwrap();
            assert_eq!(
                (args.nodes.as_deref(), args.unicast),
                (Some("10.1.0.12"), Some(expected))
            );
        }
    }

    #[test]
    fn values_are_checked() {
        for (name, value) in [
            ("OPENSHIFT_HA_REPLICA_COUNT", "many"),
            ("OPENSHIFT_HA_USE_UNICAST", "perhaps"),
        ] {
            let get = |asked: &str| (asked == name).then(|| value.to_owned());
            let error = complete(HaConfigArgs::default(), get).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(value), "{error}");
        }
    }
}
