//! The configurations on the page about DNS work as shown there.

use super::servers::{Dig, Named, ZONE, dnsmasq, has_programs, zone_is_good};
use crate::lab::{Lab, privileged};

/// Block of code of the page that is marked as tested.
pub(super) fn block(mark: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dns.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once(&format!("<!-- tested: {mark} -->\n```")).unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_zone_and_the_lines_of_the_page_are_served() {
    let test = "the_zone_and_the_lines_of_the_page_are_served";
    if !privileged(test) || !has_programs(test) {
        return;
    }
    let lab = Lab::new();
    let zone = block(&format!("zone {ZONE}"));
    zone_is_good(&lab, &zone);
    // As the page says, a record below a wildcard hides it.
    let hiding = format!("{zone}_acme-challenge.a.apps IN TXT token\n");
    let named = Named::start(&lab.client, &lab, &hiding, "");
    let dig = named.dig("127.0.0.1");
    let both = ["192.0.2.101", "192.0.2.102"];
    let has_both = |dig: &Dig<'_>, name: &str| assert_eq!(dig.addresses(name, "A"), both, "{name}");
    has_both(&dig, "new.apps.example.com");
    has_both(&dig, "x.b.apps.example.com");
    assert_eq!(dig.addresses("a.apps.example.com", "A"), [""; 0]);
    assert!(
        dig.addresses("shop.example.com", "A")
            .contains(&"lb.example.com.".to_owned())
    );
    drop(named);
    let lines = block("dnsmasq");
    let (_server, dig) = dnsmasq(&lab, &format!("{lines}host-record=app.example.com,192.0.2.1\n"));
    has_both(&dig, "lb.example.com");
    has_both(&dig, "new.apps.example.com");
    assert_eq!(dig.addresses("new.apps.example.com", "AAAA"), ["2001:db8::101"]);
    assert_eq!(dig.addresses("apps.example.com", "A"), [""; 0]);
}
