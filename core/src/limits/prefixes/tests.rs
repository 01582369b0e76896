use super::*;
use ipnet::{Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use signalbox_common::hash::mix;
use signalbox_common::shield::prefixes::{MAX_PATH_NODES, verdict};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

fn nets(texts: &[(&str, Verdict)]) -> Vec<(IpNet, Verdict)> {
    texts.iter().map(|(text, v)| (text.parse().unwrap(), *v)).collect()
}

fn look(nodes: &[Node], address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => verdict(nodes, &[0, 0, 0, v4.to_bits()], true),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            verdict(nodes, &[96, 64, 32, 0].map(|shift| (bits >> shift) as u32), false)
        }
    }
}

fn number(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Deny => DENY,
        Verdict::Allow => ALLOW,
    }
}

fn naive(prefixes: &[(IpNet, Verdict)], address: IpAddr) -> u32 {
    prefixes
        .iter()
        .filter(|(net, _)| net.contains(&address))
        .map(|(net, verdict)| (net.prefix_len(), number(*verdict)))
        .max()
        .map_or(NO_MATCH, |(_, verdict)| verdict)
}

fn net_v4(bits: u32, length: u32) -> IpNet {
    Ipv4Net::new(Ipv4Addr::from_bits(bits), length as u8)
        .unwrap()
        .trunc()
        .into()
}

fn net_v6(bits: u128, length: u32) -> IpNet {
    Ipv6Net::new(Ipv6Addr::from_bits(bits), length as u8)
        .unwrap()
        .trunc()
        .into()
}

/// First and last address of a prefix, and their neighbours outside.
fn edges(net: IpNet) -> [IpAddr; 4] {
    match (net.network(), net.broadcast()) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let (first, last) = (first.to_bits(), last.to_bits());
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(|bits| Ipv4Addr::from_bits(bits).into())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            let (first, last) = (first.to_bits(), last.to_bits());
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(|bits| Ipv6Addr::from_bits(bits).into())
        }
        _ => unreachable!("both are of the net's family"),
    }
}

#[test]
fn nothing_in_nothing_out() {
    assert!(build([]).is_empty());
    assert_eq!(look(&[], "10.0.0.1".parse().unwrap()), NO_MATCH);
    assert_eq!(look(&[], "::1".parse().unwrap()), NO_MATCH);
}

#[test]
fn longest_wins_from_the_whole_internet_down_to_a_host() {
    use Verdict::{Allow, Deny};
    let prefixes = nets(&[
        ("0.0.0.0/0", Deny),
        ("10.0.0.0/8", Allow),
        ("10.1.0.0/16", Deny),
        ("10.1.2.0/22", Allow),
        ("10.1.2.0/28", Deny),
        ("10.1.2.3/32", Allow),
        ("255.255.255.255/32", Allow),
        ("2001:db8::/32", Deny),
        ("2001:db8::/127", Allow),
        ("2001:db8::1/128", Deny),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", Deny),
    ]);
    let table = build(prefixes.clone());
    for (address, want) in [
        ("0.0.0.0", DENY),
        ("10.0.0.0", ALLOW),
        ("10.1.255.255", DENY),
        ("10.1.2.2", DENY),
        ("10.1.2.3", ALLOW),
        ("10.1.2.4", DENY),
        ("10.1.2.16", ALLOW),
        ("255.255.255.254", DENY),
        ("255.255.255.255", ALLOW),
        ("::", NO_MATCH),
        ("2001:db8::", ALLOW),
        ("2001:db8::1", DENY),
        ("2001:db8::2", DENY),
        ("2001:db9::", NO_MATCH),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", NO_MATCH),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", DENY),
    ] {
        assert_eq!(look(&table, address.parse().unwrap()), want, "{address}");
    }
    for (net, _) in &prefixes {
        for address in edges(*net) {
            assert_eq!(look(&table, address), naive(&prefixes, address), "{address}");
        }
    }
}

#[test]
fn each_family_has_a_whole_of_its_own() {
    let v4 = build(nets(&[("0.0.0.0/0", Verdict::Deny)]));
    let v6 = build(nets(&[("::/0", Verdict::Allow)]));
    assert_eq!((v4.len(), v6.len()), (DIRECT_NODES as usize, DIRECT_NODES as usize));
    for address in ["0.0.0.0", "10.1.2.3", "255.255.255.255"] {
        let address = address.parse().unwrap();
        assert_eq!((look(&v4, address), look(&v6, address)), (DENY, NO_MATCH));
    }
    for address in ["::", "2001:db8::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"] {
        let address = address.parse().unwrap();
        assert_eq!((look(&v4, address), look(&v6, address)), (NO_MATCH, ALLOW));
    }
}

#[test]
fn mapped_prefixes_are_ipv4_and_bits_beyond_the_length_ignored() {
    use Verdict::{Allow, Deny};
    for (one, other) in [
        ("::ffff:10.1.2.0/120", "10.1.2.0/24"),
        ("::ffff:10.1.2.3/128", "10.1.2.3/32"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("2001:db8::1/32", "2001:db8::/32"),
    ] {
        assert_eq!(build(nets(&[(one, Deny)])), build(nets(&[(other, Deny)])), "{one}");
    }
    assert_eq!(
        look(&build(nets(&[("::/95", Allow)])), "0.0.0.1".parse().unwrap()),
        NO_MATCH
    );
    let wider = build(nets(&[("::fffe:0:0/95", Deny)]));
    assert_eq!(look(&wider, "10.1.2.3".parse().unwrap()), NO_MATCH);
    assert_eq!(look(&wider, "::ffff:10.1.2.3".parse().unwrap()), DENY);
}

#[test]
fn allow_wins_on_equal_prefixes_and_redundant_ones_are_dropped() {
    use Verdict::{Allow, Deny};
    let (allow, deny) = (("10.1.2.3/32", Allow), ("10.1.2.3/32", Deny));
    let want = build(nets(&[allow]));
    assert_eq!(build(nets(&[allow, deny])), want);
    assert_eq!(build(nets(&[deny, allow, deny])), want);
    let net = ("10.1.0.0/16", Deny);
    assert_eq!(build(nets(&[net, deny, ("10.1.2.0/24", Deny)])), build(nets(&[net])));
    assert_ne!(
        build(nets(&[net, deny, ("10.1.2.0/24", Allow)])),
        build(nets(&[net, ("10.1.2.0/24", Allow)]))
    );
}

/// Strategy for bits so close together that prefixes hold each other: few addresses up to some bit.
fn nearby() -> impl Strategy<Value = u128> {
    (0u64..3, 0u32..=128, any::<u128>()).prop_map(|(anchor, keep, noise)| {
        let anchor = u128::from(mix(anchor)) << 64 | u128::from(mix(!anchor));
        anchor ^ noise.checked_shr(keep).unwrap_or(0)
    })
}

fn any_net() -> impl Strategy<Value = (IpNet, Verdict)> {
    let net = prop_oneof![
        (nearby(), 0u32..=32).prop_map(|(bits, length)| net_v4((bits >> 96) as u32, length)),
        (nearby(), 0u32..=128).prop_map(|(bits, length)| net_v6(bits, length)),
    ];
    (net, prop_oneof![Just(Verdict::Deny), Just(Verdict::Allow)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn as_a_search_of_all_prefixes_says(
        prefixes in prop::collection::vec(any_net(), 1..120),
        others in prop::collection::vec(nearby(), 20),
    ) {
        let table = build(prefixes.clone());
        let near = prefixes.iter().flat_map(|(net, _)| edges(*net));
        let hosts = others.iter().flat_map(|&bits| [net_v6(bits, 128), net_v4((bits >> 96) as u32, 32)]);
        for address in near.chain(hosts.flat_map(edges)) {
            prop_assert_eq!(look(&table, address), naive(&prefixes, address), "{}", address);
        }
    }

    #[test]
    fn the_order_of_prefixes_does_not_matter(
        (some, other) in prop::collection::vec(any_net(), 1..120)
            .prop_flat_map(|some| (Just(some.clone()), Just(some).prop_shuffle())),
    ) {
        let table = build(some.iter().copied());
        prop_assert_eq!(&table, &build(other.iter().copied()));
        prop_assert_eq!(&table, &build(some.into_iter().chain(other)));
    }
}

/// Makes as many prefixes as asked for; one in 8 allows.
fn many(count: u64, net: impl Fn(u64, u64) -> IpNet) -> Vec<(IpNet, Verdict)> {
    let verdict = |i: u64| {
        if mix(i).is_multiple_of(8) {
            Verdict::Allow
        } else {
            Verdict::Deny
        }
    };
    (0..count).map(|i| (net(mix(i), mix(!i)), verdict(mix(i)))).collect()
}

// Random prefix of 20 bits or more: shorter ones would cover nearly all others.
fn some_v4(high: u64, low: u64) -> IpNet {
    net_v4(high as u32, 20 + (low % 13) as u32)
}

fn some_v6(high: u64, low: u64) -> IpNet {
    let high = high >> 4 | 0x2 << 60;
    net_v6(u128::from(high) << 64 | u128::from(low), 32 + (mix(low) % 97) as u32)
}

fn some_of_both(high: u64, low: u64) -> IpNet {
    if mix(high).is_multiple_of(2) {
        some_v4(high, low)
    } else {
        some_v6(high, low)
    }
}

/// Panics where table and prefixes disagree near every `step`th prefix.
fn compare(prefixes: &[(IpNet, Verdict)], table: &[Node], step: usize) {
    let mut known: HashMap<IpNet, u32> = HashMap::new();
    for (net, verdict) in prefixes {
        let known = known.entry(*net).or_default();
        *known = number(*verdict).max(*known);
    }
    let longest = |address: IpAddr| {
        let host = IpNet::from(address);
        std::iter::successors(Some(host), IpNet::supernet)
            .find_map(|net| known.get(&net).copied())
            .unwrap_or(NO_MATCH)
    };
    for (net, _) in prefixes.iter().step_by(step) {
        for address in edges(*net) {
            assert_eq!(look(table, address), longest(address), "{address}");
        }
    }
}

#[test]
fn a_hundred_thousand_prefixes() {
    let prefixes = many(100_000, some_of_both);
    let table = build(prefixes.iter().copied());
    compare(&prefixes, &table, 100);
}

#[test]
#[ignore = "for the figures: cargo test --release -p signalbox-core --lib prefixes -- --ignored --nocapture"]
fn a_million_prefixes() {
    type Maker = fn(u64, u64) -> IpNet;
    let kinds: [(&str, Maker); 5] = [
        ("half of each, /20 to /32 and /32 to /128", some_of_both),
        ("IPv4, /20 to /32", some_v4),
        ("IPv4 hosts", |high, _| net_v4(high as u32, 32)),
        ("IPv6, /32 to /64", |high, low| {
            net_v6(u128::from(high >> 4 | 0x2 << 60) << 64, 32 + (low % 33) as u32)
        }),
        ("IPv6 hosts, all bits random (the worst)", |high, low| {
            net_v6(u128::from(high) << 64 | u128::from(low), 128)
        }),
    ];
    for (kind, net) in kinds {
        let prefixes = many(1_000_000, net);
        let begun = Instant::now();
        let table = build(prefixes.iter().copied());
        let (took, megabytes) = (begun.elapsed(), table.len() * size_of::<Node>() / 1_000_000);
        println!("{kind}: {took:?}, {} nodes, {megabytes} MB", table.len());
        assert!(table.len() <= DIRECT_NODES as usize + prefixes.len() * MAX_PATH_NODES as usize);
        compare(&prefixes, &table, 1000);
    }
}
