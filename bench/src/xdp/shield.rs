//! Cost of the shield: a denied packet, one that passes, one whose source has a rate, a SYN that is answered.

use std::net::TcpListener;
use std::time::Instant;

use anyhow::{Context, Result};
use ipnet::{IpNet, Ipv4Net};
use signalbox::kernel::l4::test_run::{ProgramTester, TestProgram};
use signalbox_common::hash;
use signalbox_common::net::Target;
use signalbox_common::shield::abi::{NO_TABLE, flag};
use signalbox_common::shield::{Guard, Limit, Settings};
use signalbox_core::limits::prefixes::{Verdict, build};

use super::{CLIENT, Path, RUNS, VIP, frame};

const PREFIXES: usize = 1_000_000;
/// Control bits, as `frame` takes them.
const ACK: u8 = 0x10;
const SYN: u8 = 2;

/// Prepares a million denied prefixes, a guard without rates on port 8443, one with rates on 8444, and a listener on
/// 8445.
pub(super) fn prepare(trial: &ProgramTester, paths: &mut Vec<Path>) -> Result<TcpListener> {
    let denied = [0, 0, 0xffff, 0xcb00_7107];
    let mut prefixes: Vec<(IpNet, Verdict)> = (0..PREFIXES as u64)
        .map(|at| {
            let random = hash::mix(at);
            // Prefixes without the clients: 11.0.0.0 to 127.255.255.255.
            let address = ((11 + random % 116) << 24) as u32 | (random >> 32) as u32 & 0x00ff_ffff;
            let length = 20 + (random >> 8 & 0xff) as u8 % 13;
            (Ipv4Net::new_assert(address.into(), length).into(), Verdict::Deny)
        })
        .collect();
    prefixes.push((Ipv4Net::new_assert(denied[3].into(), 32).into(), Verdict::Deny));
    let began = Instant::now();
    let nodes = build(prefixes);
    let built = began.elapsed();
    let common = trial.shield.write_shared_prefixes(&nodes, NO_TABLE)?;
    println!(
        "{PREFIXES} prefixes: built in {:.0} ms, written and swapped in {:.0} ms, {:.0} MB",
        built.as_secs_f64() * 1e3,
        (began.elapsed() - built).as_secs_f64() * 1e3,
        nodes.len() as f64 * 32.0 / 1e6
    );
    let settings = Settings {
        seed: 1,
        buckets: 65_536,
        drop_unparsable: 1,
        shared_prefixes: common,
        generation: 1,
    };
    trial.shield.set_settings(&settings)?;
    let plenty = Limit::new(1 << 32, 1 << 40);
    let guard = |flags| Guard {
        flags: flag::MALFORMED | flags,
        mask_v4: u32::MAX,
        ..Guard::default()
    };
    trial.guard(1, &Target::new(VIP, 8443, 6), &guard(0))?;
    let limited = Guard {
        limits: [plenty; 3],
        ..guard(flag::RATES)
    };
    trial.guard(2, &Target::new(VIP, 8444, 6), &limited)?;
    trial.guard(3, &Target::new(VIP, 8445, 6), &guard(flag::COOKIES))?;
    for words in ["address add 198.51.100.1/32 dev lo", "link set lo up"] {
        let status = std::process::Command::new("ip").args(words.split(' ')).status();
        anyhow::ensure!(status.is_ok_and(|status| status.success()), "`ip {words}` failed");
    }
    let listener = TcpListener::bind("198.51.100.1:8445").context("a listener")?;
    // Cookies always, as if the backlog were full.
    std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").context("tcp_syncookies")?;
    let path = |name, frame, returns, runs| Path {
        name,
        which: TestProgram::Xdp,
        frame,
        returns,
        runs,
    };
    paths.extend([
        path(
            "shield: denied by a prefix of a million",
            frame(denied, VIP, 40_000, 8443, ACK, 0),
            1,
            RUNS,
        ),
        path("shield: passes", frame(CLIENT, VIP, 40_000, 8443, ACK, 0), 2, RUNS),
        path(
            "shield: passes, rates of its source",
            frame(CLIENT, VIP, 40_000, 8444, ACK, 0),
            2,
            RUNS,
        ),
        path(
            "shield: SYN answered with a cookie (one by one)",
            frame(CLIENT, VIP, 40_000, 8445, SYN, 0),
            3,
            1,
        ),
        Path {
            name: "bare XDP_TX (one by one)",
            which: TestProgram::Bare,
            frame: frame(CLIENT, VIP, 1, 2, ACK, 0),
            returns: 3,
            runs: 1,
        },
    ]);
    Ok(listener)
}
