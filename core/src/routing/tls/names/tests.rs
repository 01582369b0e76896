use proptest::prelude::*;

use super::*;
use crate::wire::hostname::WildcardDepth;

fn candidate(names: &[&str], kind: KeyKind, not_after: u64) -> CertificateCandidate {
    CertificateCandidate {
        names: names.iter().map(|name| HostnamePattern::parse(name).unwrap()).collect(),
        kind,
        validity: Validity::Valid,
        not_after,
        is_default: false,
    }
}

fn host(name: &str) -> Hostname {
    Hostname::parse(name.as_bytes()).unwrap()
}

fn found(table: &NameTable, name: &str) -> Vec<usize> {
    table.find(&host(name)).collect()
}

#[test]
fn the_exact_name_goes_before_the_wildcard_and_ecdsa_before_rsa() {
    let table = NameTable::new(&[
        candidate(&["*.a.test"], KeyKind::Ecdsa, 9),
        candidate(&["x.a.test"], KeyKind::Rsa, 9),
        candidate(&["x.a.test", "a.test"], KeyKind::Ecdsa, 9),
    ]);
    assert_eq!(found(&table, "x.a.test"), [2, 1, 0]);
    assert_eq!(found(&table, "y.a.test"), [0]);
    assert_eq!(found(&table, "a.test"), [2]);
    assert_eq!(found(&table, "y.x.a.test"), Vec::<usize>::new());
    assert_eq!(found(&table, "test"), Vec::<usize>::new());
    assert_eq!(table.len(), 3);
    assert!(!table.is_empty());
}

#[test]
fn a_valid_certificate_wins_and_then_the_longer_lived_one() {
    let mut future = candidate(&["a.test"], KeyKind::Rsa, 99);
    future.validity = Validity::NotYet;
    let mut past = candidate(&["a.test"], KeyKind::Rsa, 1);
    past.validity = Validity::Expired;
    let (short, long) = (
        candidate(&["a.test"], KeyKind::Rsa, 5),
        candidate(&["a.test"], KeyKind::Rsa, 6),
    );
    let all = [future.clone(), short, long.clone(), long, past.clone()];
    assert_eq!(found(&NameTable::new(&all), "a.test"), [2]);
    assert_eq!(found(&NameTable::new(&[future, past]), "a.test"), [1]);
}

#[test]
fn the_default_is_asked_for_apart() {
    let mut rsa = candidate(&["a.test"], KeyKind::Rsa, 9);
    rsa.is_default = true;
    let mut ecdsa = candidate(&["b.test"], KeyKind::Ecdsa, 9);
    ecdsa.is_default = true;
    let table = NameTable::new(&[rsa, ecdsa]);
    assert_eq!(table.defaults().collect::<Vec<_>>(), [1, 0]);
    assert_eq!(found(&table, "c.test"), Vec::<usize>::new());
}

#[test]
fn validity_includes_both_ends() {
    let at = |now| Validity::at(now, 10, 20);
    assert_eq!(
        [at(9), at(10), at(20), at(21)],
        [Validity::NotYet, Validity::Valid, Validity::Valid, Validity::Expired]
    );
}

fn any_name() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b"]), 1..4).prop_map(|labels| labels.join("."))
}

fn any_pattern() -> impl Strategy<Value = HostnamePattern> {
    (any::<bool>(), any_name()).prop_map(|(star, name)| {
        let text = if star { format!("*.{name}") } else { name };
        HostnamePattern::parse(&text).unwrap()
    })
}

fn any_candidate() -> impl Strategy<Value = CertificateCandidate> {
    let kind = prop::sample::select(vec![KeyKind::Ecdsa, KeyKind::Ed25519, KeyKind::Rsa]);
    let validity = prop::sample::select(vec![Validity::NotYet, Validity::Expired, Validity::Valid]);
    let names = prop::collection::vec(any_pattern(), 0..4);
    (names, kind, validity, 0u64..3, any::<bool>()).prop_map(|(names, kind, validity, not_after, is_default)| {
        CertificateCandidate {
            names,
            kind,
            validity,
            not_after,
            is_default,
        }
    })
}

/// Best candidate of each kind among those that `fits` takes, by looking at all of them.
fn naive(all: &[CertificateCandidate], fits: impl Fn(&CertificateCandidate) -> bool) -> Vec<usize> {
    let best = |kind| {
        let of_kind = all.iter().enumerate().filter(|(_, one)| one.kind == kind && fits(one));
        // `max_by_key` takes the last of equals: turned round, the first.
        of_kind.rev().max_by_key(|(_, one)| (one.validity, one.not_after))
    };
    [KeyKind::Ecdsa, KeyKind::Ed25519, KeyKind::Rsa]
        .into_iter()
        .filter_map(best)
        .map(|(at, _)| at)
        .collect()
}

proptest! {
    #[test]
    fn the_table_agrees_with_a_look_at_every_certificate(
        all in prop::collection::vec(any_candidate(), 0..8),
        name in any_name(),
    ) {
        let (table, name) = (NameTable::new(&all), host(&name));
        let has = |one: &CertificateCandidate, star: bool| one.names.iter().any(|pattern| {
            matches!(pattern, HostnamePattern::Wildcard(_)) == star && pattern.matches(&name, WildcardDepth::One)
        });
        let mut expected = naive(&all, |one| has(one, false));
        expected.extend(naive(&all, |one| has(one, true)));
        prop_assert_eq!(table.find(&name).collect::<Vec<_>>(), expected);
        prop_assert_eq!(table.defaults().collect::<Vec<_>>(), naive(&all, |one| one.is_default));
    }
}
