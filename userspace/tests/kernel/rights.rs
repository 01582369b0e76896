//! The documented capabilities are all that it takes to load, attach and pin. `SIGNALBOX_TEST_RIGHTS=documented` has every
//! other test run with them, too.

use crate::namespace::{in_own_namespace_as_user, test_of};
use crate::ordinary::{UID, mask};

use aya::programs::ProgramType;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use signalbox::kernel::cut::pins;
use signalbox::kernel::{Kernel, rights};

fn as_user<F: FnOnce() + Send>(work: F) {
    in_own_namespace_as_user(test_of::<F>(), ProgramType::SchedClassifier, &[], work);
}

#[test]
fn an_ordinary_user_has_the_documented_capabilities_and_no_others() {
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
        assert_eq!(rights::missing(), []);
        // As a test would notice that needs more.
        assert_eq!(unshare(CloneFlags::CLONE_NEWNET), Err(Errno::EPERM));
    });
}

#[test]
fn an_ordinary_user_with_the_documented_capabilities_loads_everything_and_may_pin() {
    as_user(|| {
        let kernel = Kernel::load().unwrap();
        assert_eq!(kernel.degraded, []);
        pins::try_out().unwrap();
    });
}
