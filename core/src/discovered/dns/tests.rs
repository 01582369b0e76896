use super::*;
use crate::model::Bind;

fn pattern(text: &str) -> HostnamePattern {
    HostnamePattern::parse(text).unwrap()
}

fn hostname(text: &str) -> Hostname {
    Hostname::parse(text.as_bytes()).unwrap()
}

fn sorted(names: &[&str], zone: Option<&str>) -> [Vec<String>; 4] {
    let names: Vec<_> = names.iter().map(|name| pattern(name)).collect();
    let zone = zone.map(hostname);
    let OwnerNames {
        names,
        covered,
        outside,
        unfit,
    } = owner_names(&names, zone.as_ref());
    [names, covered, outside, unfit].map(|list| list.iter().map(ToString::to_string).collect())
}

fn binds(all: &[(&str, &str, u16)]) -> Vec<NamedBind> {
    let bind = |&(listener, prefix, port): &(&str, &str, u16)| NamedBind {
        listener: listener.into(),
        bind: Bind {
            prefix: prefix.parse().unwrap(),
            port,
        },
    };
    all.iter().map(bind).collect()
}

fn addresses(all: &[&str]) -> Vec<IpAddr> {
    all.iter().map(|address| address.parse().unwrap()).collect()
}

#[test]
fn a_wildcard_answers_for_all_names_below_it() {
    let names = [
        "*.apps.test",
        "apps.test",
        "a.apps.test",
        "x.a.apps.test",
        "*.a.apps.test",
        "xapps.test",
    ];
    let [kept, covered, outside, unfit] = sorted(&names, None);
    assert_eq!(kept, ["apps.test", "xapps.test", "*.apps.test"]);
    assert_eq!(covered, ["a.apps.test", "x.a.apps.test", "*.a.apps.test"]);
    assert_eq!((outside.len(), unfit.len()), (0, 0));
}

#[test]
fn names_outside_of_a_zone_are_told_apart() {
    let names = [
        "example.com",
        "*.example.com",
        "a.example.com",
        "badexample.com",
        "*.com",
        "a.test",
    ];
    let [kept, covered, outside, _] = sorted(&names, Some("example.com"));
    assert_eq!(kept, ["example.com", "*.example.com"]);
    assert_eq!(covered, ["a.example.com"]);
    assert_eq!(outside, ["badexample.com", "*.com", "a.test"]);
}

#[test]
fn names_that_no_host_has_get_no_record() {
    let long = format!("*.{}", "abcdefghi.".repeat(25) + "ab");
    let names = [
        "a_b.test",
        "-a.test",
        "a-.test",
        "default",
        "192.0.2.1",
        &long,
        "x--y.test",
        "1.test",
        "*.test",
    ];
    let [kept, covered, _, unfit] = sorted(&names, None);
    assert_eq!((kept, covered.len()), (vec!["*.test".to_owned()], 2));
    assert_eq!(unfit.len(), 6, "{unfit:?}");
    assert!(is_owner_name(&pattern("xn--bcher-kva.example")));
}

#[test]
fn records_point_to_where_listeners_are_reached() {
    let all = [
        ("http", "192.0.2.1/32", 80),
        ("https", "192.0.2.1/32", 443),
        ("http", "2001:db8::1/128", 80),
        ("https", "2001:db8::1/128", 443),
    ];
    let reached = reached_at(&binds(&all), &[], &[]);
    assert_eq!(reached.addresses, addresses(&["192.0.2.1", "2001:db8::1"]));
    assert_eq!(reached.notes, [""; 0]);
    // Ports that only some addresses have.
    let reached = reached_at(&binds(&all[..3]), &[], &[]);
    assert_eq!(reached.notes.len(), 1, "{:?}", reached.notes);
    assert!(reached.notes[0].starts_with("no listener has 2001:db8::1 at port 443"));
    // Addresses that no other cluster reaches, or that are not known.
    let all = [
        ("http", "0.0.0.0/0", 80),
        ("http", "::/0", 80),
        ("local", "127.0.0.1/32", 80),
        ("link", "fe80::1/128", 80),
        ("net", "198.51.100.0/24", 80),
    ];
    let reached = reached_at(&binds(&all), &[], &[]);
    assert_eq!((reached.addresses.len(), reached.notes.len()), (0, 5));
    assert!(
        reached.notes.iter().all(|note| note.contains("--address")),
        "{:?}",
        reached.notes
    );
}

#[test]
fn addresses_that_are_given_take_the_place_of_the_listeners() {
    let all = binds(&[("http", "0.0.0.0/0", 80), ("https", "192.0.2.1/32", 443)]);
    let given = addresses(&["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2", "2001:db8::1"]);
    let reached = reached_at(&all, &addresses(&["198.51.100.1"]), &given);
    assert_eq!(reached.addresses, addresses(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]));
    assert_eq!(reached.notes.len(), 2, "{:?}", reached.notes);
    assert!(reached.notes[0].starts_with("no listener has 192.0.2.2 at port 443"));
    assert!(reached.notes[1].starts_with("no listener has 2001:db8::1: nothing answers there"));
}

#[test]
fn virtual_addresses_come_before_the_balancers_own() {
    let all = binds(&[("http", "0.0.0.0/0", 80), ("http", "192.0.2.11/32", 80)]);
    // The IPv6 address is for layer-4 services: no listener has it.
    let reached = reached_at(&all, &addresses(&["192.0.2.101", "192.0.2.102", "2001:db8::101"]), &[]);
    assert_eq!(reached.addresses, addresses(&["192.0.2.101", "192.0.2.102"]));
    assert_eq!(reached.notes, [""; 0]);
    let reached = reached_at(&all[1..], &addresses(&["192.0.2.101"]), &[]);
    assert_eq!(reached.addresses, addresses(&["192.0.2.11"]));
}

fn table(zone: Option<&str>) -> DnsTable {
    DnsTable {
        names: ["example.com", "app.example.com", "*.apps.example.com"]
            .map(pattern)
            .into(),
        addresses: addresses(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
        ttl: 60,
        zone: zone.map(hostname),
        notes: vec!["a note".into()],
    }
}

#[test]
fn a_zone_has_its_names_without_its_own() {
    let server = NameServer {
        name: hostname("ns1.example.com"),
        addresses: addresses(&["192.0.2.53"]),
    };
    let elsewhere = NameServer {
        name: hostname("ns.example.net"),
        addresses: Vec::new(),
    };
    let head = ZoneHead {
        servers: vec![server, elsewhere],
        serial: 7,
    };
    let text = table(Some("example.com")).bind_text(Some(&head)).unwrap();
    assert_eq!(
        text,
        "; a note\n$ORIGIN example.com.\n$TTL 60\n\
         @ IN SOA ns1.example.com. hostmaster.example.com. 7 3600 600 1209600 60\n\
         @ IN NS ns1.example.com.\n@ IN NS ns.example.net.\nns1 IN A 192.0.2.53\n\
         @ 60 IN A 192.0.2.1\n@ 60 IN A 192.0.2.2\n@ 60 IN AAAA 2001:db8::1\n\
         app 60 IN A 192.0.2.1\napp 60 IN A 192.0.2.2\napp 60 IN AAAA 2001:db8::1\n\
         *.apps 60 IN A 192.0.2.1\n*.apps 60 IN A 192.0.2.2\n*.apps 60 IN AAAA 2001:db8::1\n"
    );
    let records = table(None).bind_text(None).unwrap();
    assert!(
        records.contains("\n*.apps.example.com. 60 IN A 192.0.2.2\n"),
        "{records}"
    );
}

#[test]
fn name_servers_that_a_zone_cannot_have_are_refused() {
    let refused = |name: &str, given: &[&str]| {
        let server = NameServer {
            name: hostname(name),
            addresses: addresses(given),
        };
        let head = ZoneHead {
            servers: vec![server],
            serial: 1,
        };
        table(Some("example.com")).bind_text(Some(&head)).unwrap_err()
    };
    assert!(refused("ns1.example.com", &[]).contains("ns1.example.com=192.0.2.53"));
    assert!(refused("app.example.com", &["192.0.2.9"]).contains("is routed"));
    assert!(refused("ns.example.net", &["192.0.2.9"]).contains("its own zone"));
    assert!(refused("n_s.example.com", &["192.0.2.9"]).contains("not a valid name"));
}

#[test]
fn dnsmasqs_lines_tell_names_from_wildcards() {
    let mut table = table(None);
    table.addresses.truncate(1);
    assert_eq!(
        table.dnsmasq_text(),
        "# a note\nlocal-ttl=60\nhost-record=example.com,192.0.2.1,60\nhost-record=app.example.com,192.0.2.1,60\n\
         address=/*.apps.example.com/192.0.2.1\nlocal=/*.apps.example.com/\n"
    );
}
