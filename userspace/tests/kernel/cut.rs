//! Tier cut's programs in the kernel: accepted by the verifier, pinned, adopted, removed.

use crate::namespace::{in_own_namespace, test_of};
use aya::programs::ProgramType;
use signalbox::kernel::Cut;
use signalbox::kernel::object::ObjectLoader;
use signalbox::kernel::pins;

/// Runs a test in a network namespace with two interfaces that routes go by.
fn in_a_lab<F: FnOnce() + Send>(work: F) {
    let ip = [
        "link add veth-a type veth peer name veth-b",
        "link set veth-a up",
        "link set veth-b up",
        "addr add 192.0.2.1/24 dev veth-a",
        "addr add 198.51.100.1/24 dev veth-b",
    ];
    in_own_namespace(test_of::<F>(), ProgramType::SchedClassifier, &ip, work);
}

fn load() -> Cut {
    Cut::load(&mut ObjectLoader::default(), 1024, 0, false)
        .unwrap_or_else(|error| panic!("{} {error:?}", signalbox::sys::error_chain(&error)))
}

#[test]
fn programs_and_maps_outlive_the_process_and_can_be_removed() {
    in_a_lab(|| {
        let cut = load();
        assert!(!cut.adopted);
        assert_eq!(cut.table.len(), 1024);
        assert_eq!(cut.follow_interfaces(true), 2, "an interface with a route each");
        drop(cut);
        let again = load();
        assert!(again.adopted, "the maps are still there");
        assert_eq!(
            again.follow_interfaces(true),
            2,
            "the programs take the place of the old ones"
        );
        drop(again);
        let removed = pins::remove_all(pins::PinKind::Cut).unwrap();
        let links = removed
            .iter()
            .filter(|path| path.to_string_lossy().contains("link-"))
            .count();
        assert_eq!(links, 4, "{removed:?}");
        assert!(pins::remove_all(pins::PinKind::Cut).unwrap().is_empty());
    });
}

#[test]
fn two_processes_do_not_share_a_table_by_accident() {
    in_a_lab(|| {
        let first = load();
        let error = Cut::load(&mut ObjectLoader::default(), 1024, 0, false)
            .err()
            .map(|error| signalbox::sys::error_chain(&error));
        assert!(
            error.as_ref().is_some_and(|text| text.contains("another signalbox")),
            "{error:?}"
        );
        drop(first);
        drop(load());
        pins::remove_all(pins::PinKind::Cut).unwrap();
    });
}
