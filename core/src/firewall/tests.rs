//! Verdicts about the rulesets in `rulesets`. Those of firewalld, ufw and netavark (`podman`) were captured from these
//! programs. The others are written by hand: those with a program's name after what its source code generates, and the
//! rest for one kind of rule each.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;

/// Rules as the reader reads them, from a file with a section for each program.
fn ruleset(text: &str) -> Result<FilterRuleset, String> {
    let text = format!("\n{text}");
    let section = |of: &str| {
        let mut sections = text.split("\n## ");
        sections.find_map(|section| section.strip_prefix(of)?.strip_prefix('\n'))
    };
    let json = section("nft --json --handle list ruleset");
    let mut tables = json.map_or(Ok(Vec::new()), |json| nft::parse(json.as_bytes()))?;
    let sets = IpSets::parse(section("ipset save").unwrap_or_default());
    for (family, program, label) in [
        (IpFamily::V4, "iptables", "iptables"),
        (IpFamily::V6, "ip6tables", "ip6tables"),
    ] {
        let shown = section(&format!("{program}-nft-save")).unwrap_or_default();
        save::fill(&mut tables, save::parse(shown, family, label, &sets)?);
        let legacy = section(&format!("{program}-legacy-save")).unwrap_or_default();
        tables.extend(save::parse(legacy, family, label, &sets)?);
    }
    let services = section("/proc/net/ip_vs").unwrap_or_default();
    Ok(FilterRuleset {
        tables,
        virtual_services: ipvs::virtual_services(services),
    })
}

/// A listener at this address, whose clients come by `eth0`, with two hosts.
fn facts(bind: &str) -> ListenerFacts {
    let bind: SocketAddr = bind.parse().unwrap();
    let (hosts, source) = if bind.is_ipv4() {
        (["198.51.100.20:6443", "198.51.100.21:6443"], "192.0.2.10")
    } else {
        (["[2001:db8:1::20]:6443", "[2001:db8:1::21]:6443"], "2001:db8::10")
    };
    let host = |address: &str| HostWay {
        address: address.parse().unwrap(),
        sources: vec![source.parse().unwrap()],
        interfaces: vec!["eth0".to_owned()],
        has_sole_address: true,
    };
    ListenerFacts {
        binds: vec![bind],
        hosts: hosts.map(host).into(),
        interfaces: vec!["eth0".to_owned()],
        has_masters: false,
        own_ports: (16384, 28671),
    }
}

fn family(facts: &ListenerFacts) -> IpFamily {
    if facts.binds[0].is_ipv4() {
        IpFamily::V4
    } else {
        IpFamily::V6
    }
}

fn verdict(text: &str, facts: &ListenerFacts) -> String {
    let ruleset = ruleset(text).unwrap();
    match judge(&ruleset, facts, family(facts)) {
        FilterVerdict::Free => "free".to_owned(),
        FilterVerdict::FreeExcept(left) => {
            let [(_, rest), listed @ ..] = left.listed() else {
                panic!()
            };
            let clients: Vec<_> = listed.iter().map(|(prefix, _)| prefix.to_string()).collect();
            let word = if *rest { "except" } else { "for" };
            format!("free {word} {}: {}", clients.join(" "), left.first_reason())
        }
        FilterVerdict::Left(reason) => reason.to_string(),
    }
}

macro_rules! verdicts {
    ($($file:literal, $bind:literal => $expected:literal;)*) => {
        /// Text of each ruleset, address of the listener, and the beginning of the verdict.
        const VERDICTS: &[(&str, &str, &str, &str)] = &[
            $(($file, include_str!(concat!("rulesets/", $file, ".txt")), $bind, $expected),)*
        ];
    };
}

verdicts! {
    "calico", "192.0.2.10:443" => "free";
    "docker", "192.0.2.10:443" => "free";
    "docker", "192.0.2.10:8080" => "ip nat DOCKER handle";
    "fail2ban", "192.0.2.10:443" => "free";
    "fail2ban-banned", "192.0.2.10:443" => "free except 203.0.113.50/32: inet f2b-table f2b-chain handle 6: `tcp dport { 80, 443 } ip saddr @addr-set-nginx reject";
    "fail2ban-banned", "192.0.2.10:8443" => "free";
    "fail2ban-iptables", "192.0.2.10:443" => "free except 203.0.113.50/32: ip filter f2b-nginx handle";
    "fail2ban-iptables", "192.0.2.10:8443" => "free";
    "firewalld-masquerade", "192.0.2.10:443" => "free";
    "firewalld-open", "192.0.2.10:443" => "free";
    "firewalld-open", "192.0.2.10:8443" => "inet firewalld filter_IN_public handle";
    "firewalld-open", "[2001:db8::10]:443" => "inet firewalld filter_PREROUTING handle";
    "firewalld-rich", "192.0.2.10:443" => "free except 10.0.0.0/8: inet firewalld filter_IN_public_deny handle";
    "firewalld-rich", "192.0.2.10:80" => "free";
    "harmless-early", "192.0.2.10:443" => "free";
    "harmless-flowtable", "192.0.2.10:443" => "free";
    "harmless-interface", "192.0.2.10:443" => "free";
    "harmless-mark", "192.0.2.10:443" => "free";
    "harmless-masquerade", "192.0.2.10:443" => "free";
    "harmless-others", "192.0.2.10:443" => "free";
    "harmless-others", "192.0.2.11:443" => "inet t in handle";
    "harmless-vmap", "192.0.2.10:443" => "free";
    "harmless-vmap", "192.0.2.10:8443" => "inet v input handle";
    "iptables-legacy-host", "192.0.2.10:443" => "free";
    "iptables-legacy-host", "192.0.2.10:9000" => "iptables filter LOGDROP rule 2";
    "kube-proxy-iptables", "192.0.2.10:443" => "free";
    "kube-proxy-iptables", "192.0.2.10:30080" => "ip nat KUBE-MARK-MASQ handle";
    "kube-proxy-iptables", "192.0.2.10:31999" => "ip filter KUBE-EXTERNAL-SERVICES handle";
    "kube-proxy-iptables", "10.96.0.11:443" => "ip nat KUBE-MARK-MASQ handle";
    "kube-proxy-ipvs", "192.0.2.10:443" => "free";
    "kube-proxy-ipvs", "192.0.2.10:30080" => "IPVS: `192.0.2.10:30080`";
    "kube-proxy-nft", "192.0.2.10:443" => "free";
    "kube-proxy-nft", "192.0.2.10:30080" => "ip kube-proxy mark-for-masquerade handle";
    "kube-proxy-nft", "10.96.0.11:443" => "ip kube-proxy mark-for-masquerade handle";
    "nasty-address-type", "[2001:db8::10]:443" => "ip6tables filter INPUT rule 1";
    "nasty-address-type", "[2001:db8::10]:80" => "free";
    "nasty-chain-names", "192.0.2.10:443" => "iptables filter CONTINUE rule 1";
    "nasty-connlimit", "192.0.2.10:443" => "inet d input handle";
    "nasty-continue", "192.0.2.10:443" => "inet t in handle 2: `tcp dport 443 continue drop`";
    "nasty-counter-map", "192.0.2.10:443" => "inet t in policy";
    "nasty-device-interface", "192.0.2.10:443" => "netdev t in handle 2";
    "nasty-dynamic-set", "192.0.2.10:443" => "inet d input handle";
    "nasty-element-limit", "192.0.2.10:443" => "inet t in policy: `policy drop` (SYNs from clients: drop)";
    "nasty-early-state", "192.0.2.10:443" => "inet r pre handle";
    "nasty-from-hosts", "192.0.2.10:443" => "inet l input policy: `policy drop` (packets from hosts: drop)";
    "nasty-goto", "192.0.2.10:443" => "inet g end handle";
    "nasty-goto-policy", "192.0.2.10:443" => "inet g input policy";
    "nasty-goto-some", "192.0.2.10:443" => "free except 203.0.113.0/24: inet t in policy";
    "nasty-ingress", "192.0.2.10:443" => "netdev n in handle";
    "nasty-interface", "192.0.2.10:443" => "inet i by_interface handle";
    "nasty-interface", "192.0.2.10:80" => "free";
    "nasty-interface-index", "192.0.2.10:443" => "inet t in handle 2";
    "nasty-map-update", "192.0.2.10:443" => "inet t in handle 4";
    "nasty-mark", "192.0.2.10:443" => "inet m classify handle";
    "nasty-mark", "192.0.2.10:8443" => "free";
    "nasty-meter", "192.0.2.10:443" => "inet d input handle";
    "nasty-notrack", "192.0.2.10:443" => "ip r pre handle";
    "nasty-output", "192.0.2.10:443" => "ip filter2 output handle 3: `tcp dport 6443 ip daddr 198.51.100.21 reject";
    "nasty-queue", "192.0.2.10:443" => "ip t in handle";
    "nasty-redirect", "192.0.2.10:443" => "ip t pre handle";
    "nasty-reply", "192.0.2.10:443" => "inet l output handle";
    "nasty-return", "192.0.2.10:443" => "free except 203.0.113.0/24: inet t in handle 6: `tcp dport 443 drop`";
    "nasty-return", "192.0.2.10:80" => "free";
    "nasty-return-policy", "192.0.2.10:443" => "free except 203.0.113.0/24: inet t in policy";
    "nasty-set-limit", "192.0.2.10:443" => "inet t in policy";
    "nasty-source-nat", "192.0.2.10:443" => "ip t post handle";
    "nasty-status", "192.0.2.10:443" => "inet t in handle 2";
    "nasty-syn-later", "192.0.2.10:443" => "inet l input handle";
    "nasty-vmap", "192.0.2.10:443" => "inet v checked handle";
    "nasty-vmap", "192.0.2.10:80" => "free";
    "nasty-vmap-continue", "192.0.2.10:443" => "inet t in handle 3";
    "nasty-vmap-continue", "192.0.2.10:80" => "free";
    "nasty-vmap-return", "192.0.2.10:443" => "free except 203.0.113.50/32: inet t in policy";
    "nft-host", "192.0.2.10:443" => "free";
    "nft-host", "192.0.2.10:8443" => "inet filter input handle";
    "nft-output-policy", "192.0.2.10:443" => "free";
    "nft-sources", "192.0.2.10:443" => "free for 198.51.100.0/24: inet filter input policy: `policy drop` (SYNs from clients: drop)";
    "openshift", "192.0.2.10:443" => "free";
    "openshift", "192.0.2.10:31443" => "ip nat OVN-KUBE-";
    "openshift-local", "192.0.2.10:443" => "free except 172.30.10.20/32: ip mangle OVN-KUBE-ITP handle";
    "podman", "192.0.2.10:443" => "free";
    "podman", "192.0.2.10:8080" => "ip nat ";
    "ufw-limit", "192.0.2.10:443" => "ip filter ufw-user-input handle";
    "ufw-open", "192.0.2.10:443" => "free";
    "ufw-open", "192.0.2.10:8443" => "ip filter ";
    "ufw-open", "[2001:db8::10]:443" => "free";
}

#[test]
fn each_ruleset_has_its_verdict() {
    let mut wrong = String::new();
    for (file, text, bind, expected) in VERDICTS {
        let found = verdict(text, &facts(bind));
        if !found.starts_with(expected) {
            wrong += &format!("{file} {bind}: {found}\n  expected {expected}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn answers_of_hosts_come_by_their_own_interface_too() {
    let text = include_str!("rulesets/nasty-tunnel.txt");
    let mut facts = facts("192.0.2.10:443");
    assert_eq!(verdict(text, &facts), "free");
    facts.hosts[1].interfaces = vec!["wg0".to_owned()];
    assert!(verdict(text, &facts).starts_with("inet t in handle 2: `iifname wg0"));
    facts.hosts[1].interfaces = Vec::new();
    assert!(verdict(text, &facts).starts_with("inet t in handle 2: `iifname wg0"));
}

#[test]
fn rules_may_see_a_vrf_instead_of_its_interface() {
    let text = include_str!("rulesets/nasty-vrf.txt");
    let mut facts = facts("192.0.2.10:443");
    assert_eq!(verdict(text, &facts), "free");
    facts.interfaces.push("blue".to_owned());
    assert!(verdict(text, &facts).starts_with("inet t in handle 2: `iifname blue"));
    facts.interfaces.pop();
    facts.has_masters = true;
    assert!(verdict(text, &facts).starts_with("inet t in handle 3: `fib daddr type != local drop`"));
}

#[test]
fn segments_may_be_kept_within_the_path_and_no_smaller() {
    let of = |option: &str| {
        let rule = format!("-A POSTROUTING -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS {option}");
        let text = format!("## iptables-legacy-save\n*mangle\n:POSTROUTING ACCEPT [0:0]\n{rule}\nCOMMIT\n");
        verdict(&text, &facts("192.0.2.10:443"))
    };
    assert_eq!(of("--clamp-mss-to-pmtu"), "free");
    assert!(of("--set-mss 1200").starts_with("iptables mangle POSTROUTING rule 1"));
}

#[test]
fn rules_about_some_clients_are_about_no_others() {
    let of = |rules: &str| {
        let rules: String = rules.split("; ").map(|rule| format!("-A {rule}\n")).collect();
        let text = "## iptables-legacy-save\n*filter\n:INPUT ACCEPT [0:0]\n:WEB - [0:0]\n";
        let jump = "-A INPUT -p tcp -m tcp --dport 443 -j WEB\n";
        verdict(&format!("{text}{jump}{rules}COMMIT\n"), &facts("192.0.2.10:443"))
    };
    for (rules, expected) in [
        ("WEB -s 10.0.0.0/8 -j DROP", "free except 10.0.0.0/8: "),
        ("WEB ! -s 10.0.0.0/8 -j DROP", "free for 10.0.0.0/8: "),
        ("WEB -s 10.0.0.0/8 -j ACCEPT; WEB -j DROP", "free for 10.0.0.0/8: "),
        // Addresses below 1.0.0.0 are those of clients, too.
        ("WEB -s 0.0.0.0/8 -j DROP", "free except 0.0.0.1/32 0.0.0.2/31 "),
        ("WEB -s 127.0.0.0/8 -j DROP", "free"),
        ("WEB -s 10.0.0.0/8 -p tcp -m tcp --dport 80 -j DROP", "free"),
        // A part of the clients of another rule.
        (
            "WEB -s 10.1.0.0/16 -j RETURN; WEB -s 10.0.0.0/8 -j DROP",
            "free except 10.0.0.0/16 10.2.0.0/15 10.4.0.0/14 ",
        ),
        // A limit that only some clients meet does not count for the others.
        (
            "WEB -s 10.0.0.0/8 -m limit --limit 5/sec -j DROP",
            "free except 10.0.0.0/8: ",
        ),
        (
            "WEB -s 10.0.0.0/8 -m limit --limit 5/sec -j ACCEPT; WEB -j DROP",
            "iptables filter WEB rule 2",
        ),
    ] {
        let found = of(rules);
        let is_whole = expected != "free" || found == "free";
        assert!(found.starts_with(expected) && is_whole, "{rules}: {found}");
    }
}

#[test]
fn a_virtual_service_at_port_0_has_all_ports() {
    let text = "## /proc/net/ip_vs\nTCP  C000020A:0000 rr  persistent 300\n";
    assert!(verdict(text, &facts("192.0.2.10:443")).starts_with("IPVS: `192.0.2.10:443`"));
    assert_eq!(verdict(text, &facts("192.0.2.11:443")), "free");
}

/// Whatever is cut from a ruleset or changed in it: the parsers do not panic, and unknown words are no accident.
fn mutated() -> impl Strategy<Value = (usize, usize, usize, String)> {
    (0..VERDICTS.len(), any::<usize>(), 0usize..40, "[ -~]{0,8}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_change_of_a_ruleset_makes_the_parsers_panic((which, at, removed, added) in mutated()) {
        let (_, text, bind, _) = VERDICTS[which];
        let at = at % text.len();
        let bytes = text.as_bytes();
        let rest = &bytes[(at + removed).min(bytes.len())..];
        let changed = [&bytes[..at], added.as_bytes(), rest].concat();
        if let Ok(ruleset) = ruleset(&String::from_utf8_lossy(&changed)) {
            let facts = facts(bind);
            let _ = judge(&ruleset, &facts, family(&facts));
        }
    }

    /// A statement, match or target that is not known keeps a listener from being free, where packets may reach it.
    #[test]
    fn unknown_parts_are_never_free(word in "zz[a-z]{1,6}") {
        let json = |statement: &str| format!(
            "## nft --json --handle list ruleset\n{{\"nftables\": [{{\"chain\": {{\"family\": \"inet\", \"table\": \"t\", \
             \"name\": \"c\", \"hook\": \"input\", \"type\": \"filter\", \"prio\": 0, \"policy\": \"accept\"}}}}, \
             {{\"rule\": {{\"family\": \"inet\", \"table\": \"t\", \"chain\": \"c\", \"handle\": 7, \
             \"expr\": [{statement}]}}}}]}}\n"
        );
        let save = |rule: &str| format!("## iptables-legacy-save\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {rule}\nCOMMIT\n");
        let texts = [
            json(&format!("{{\"{word}\": null}}")),
            json(&format!("\"{word}\"")),
            json(&format!("{{\"match\": {{\"op\": \"==\", \"left\": {{\"{word}\": 1}}, \"right\": 2}}}}, {{\"drop\": null}}")),
            json(&format!("{{\"match\": {{\"op\": \"{word}\", \"left\": {{\"meta\": {{\"key\": \"mark\"}}}}, \"right\": 2}}}}, {{\"drop\": null}}")),
            json(&format!("{{\"match\": {{\"op\": \"==\", \"left\": {{\"meta\": {{\"key\": \"l4proto\"}}}}, \"right\": {{\"{word}\": 1}}}}}}, {{\"drop\": null}}")),
            json(&format!("{{\"match\": {{\"op\": \"==\", \"left\": {{\"payload\": {{\"protocol\": \"tcp\", \"field\": \"dport\"}}}}, \"right\": \"@{word}\"}}}}, {{\"drop\": null}}")),
            json(&format!("{{\"vmap\": {{\"key\": {{\"meta\": {{\"key\": \"mark\"}}}}, \"data\": \"@{word}\"}}}}")),
            json(&format!("{{\"jump\": {{\"target\": \"{word}\"}}}}")),
            save(&format!("-j {word}")),
            save(&format!("-m {word} -j DROP")),
            save(&format!("-m {word} --{word} 1")),
            save(&format!("-p tcp -m tcp --{word} 1 -j DROP")),
            save(&format!("-p tcp -m tcp --dport {word} -j DROP")),
            save(&format!("-m set --match-set {word} src -j DROP")),
        ];
        for text in texts {
            let found = verdict(&text, &facts("192.0.2.10:443"));
            prop_assert!(found != "free", "{}", text);
        }
    }
}
