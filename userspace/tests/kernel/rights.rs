//! The documented capabilities are enough to load, attach and pin. `SIGNALBOX_TEST_RIGHTS=documented` has every other
//! test run with them, too.

use crate::namespace::{in_own_namespace_as_user, test_of};
use crate::ordinary::{UID, mask};

use aya::programs::ProgramType;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use signalbox::kernel::object::{self, ObjectLoader};
use signalbox::kernel::pins;
use signalbox::kernel::verifier::{self, LoadOutcome};
use signalbox::kernel::{Cut, Kernel, capabilities};
use signalbox_common::parts;

fn as_user<F: FnOnce() + Send>(work: F) {
    in_own_namespace_as_user(test_of::<F>(), ProgramType::SchedClassifier, &[], work);
}

#[test]
fn an_ordinary_user_has_exactly_the_documented_capabilities() {
    as_user(|| {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let ids = format!("{UID}\t{UID}\t{UID}\t{UID}");
        let all = format!("{:016x}", mask());
        for (key, value) in [
            ("Uid", &ids),
            ("Gid", &ids),
            ("CapEff", &all),
            ("CapBnd", &all),
            ("CapAmb", &all),
        ] {
            assert!(
                status.contains(&format!("{key}:\t{value}\n")),
                "{key} {value}: {status}"
            );
        }
        assert_eq!(capabilities::missing(), []);
        // A test that needs more rights would notice.
        assert_eq!(unshare(CloneFlags::CLONE_NEWNET), Err(Errno::EPERM));
    });
}

#[test]
fn documented_capabilities_suffice_to_load_attach_and_pin() {
    let ip = [
        "link add veth-a type veth peer name veth-b",
        "link set veth-a up",
        "link set veth-b up",
        "addr add 192.0.2.1/24 dev veth-a",
        "addr add 198.51.100.1/24 dev veth-b",
    ];
    let name = "documented_capabilities_suffice_to_load_attach_and_pin";
    in_own_namespace_as_user(name, ProgramType::SchedClassifier, &ip, || {
        let verdicts = object::SHIPPED.map(|object| verifier::verdicts(object, parts::ALL).unwrap());
        let verdicts = verdicts.concat();
        assert_eq!(verdicts.len(), 8);
        for verdict in verdicts {
            assert!(
                matches!(verdict.outcome, LoadOutcome::Accepted(_)),
                "{}",
                verdict.program
            );
        }
        let mut kernel = Kernel::load(&mut ObjectLoader::default()).unwrap();
        assert_eq!(kernel.degraded, []);
        kernel.steer().unwrap();
        let cut = Cut::load(&mut ObjectLoader::default(), 1024, 0, false).unwrap();
        assert_eq!(cut.follow_interfaces(true), 2, "an interface with a route each");
        drop(cut);
        let pinned = pins::remove_all(pins::PinKind::Cut).unwrap();
        assert!(
            pinned.len() > 4,
            "two links for each interface, and the maps: {pinned:?}"
        );
    });
}
