//! The object as the kernel sees it: its maps have the sizes that `signalbox-common` says, the verifier takes its
//! programs, and what they log arrives.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod kernel;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapInfo, MapType, SockMap};
use aya::programs::{ProgramType, SkLookup, SkSkb};
use aya::{Ebpf, EbpfLoader};
use log::{Level, Log, Metadata, Record};
use signalbox_common::gate::{Gate, Leg, MAX_GATES};
use signalbox_common::reason::REASONS;
use signalbox_common::steer::{
    MAX_BINDINGS, MAX_LISTENER_SLOTS, MAX_LISTENERS, SLOT_V4, STEER_FIXED_BITS, SteerKey, SteerValue,
};

/// Flags of `bpf(2)`, as in `ebpf/src`.
const NO_PREALLOC: u32 = 1;
const MMAPABLE: u32 = 1 << 10;

#[test]
fn every_map_has_the_type_and_sizes_that_userspace_goes_by() {
    in_own_namespace(|| {
        // Keys and values of 4 bytes without a type: array indices, and descriptors of sockets.
        let wanted: BTreeMap<&str, (MapType, usize, usize, u32, u32)> = [
            (
                "BINDINGS",
                (
                    MapType::LpmTrie,
                    size_of::<Key<SteerKey>>(),
                    size_of::<SteerValue>(),
                    MAX_BINDINGS,
                    NO_PREALLOC,
                ),
            ),
            ("COUNTERS", (MapType::PerCpuArray, 4, size_of::<u64>(), REASONS, 0)),
            ("GATES", (MapType::Array, 4, size_of::<Gate>(), MAX_GATES, MMAPABLE)),
            (
                "LEGS",
                (
                    MapType::Hash,
                    size_of::<u64>(),
                    size_of::<Leg>(),
                    MAX_GATES,
                    NO_PREALLOC,
                ),
            ),
            ("LISTENERS", (MapType::SockMap, 4, 4, MAX_LISTENER_SLOTS, 0)),
            ("PEERS", (MapType::SockHash, size_of::<u64>(), 4, MAX_GATES, 0)),
            ("STEERED", (MapType::PerCpuArray, 4, size_of::<u64>(), MAX_LISTENERS, 0)),
            ("VERDICTS", (MapType::SockHash, size_of::<u64>(), 4, MAX_GATES, 0)),
        ]
        .into();
        let ebpf = load();
        let info = |map: &Map| {
            let info = info(map);
            let (key, value) = (info.key_size() as usize, info.value_size() as usize);
            (
                info.map_type().unwrap(),
                key,
                value,
                info.max_entries(),
                info.map_flags(),
            )
        };
        // Ring buffers have neither keys nor values. The compiler's own (".rodata") are of any size.
        let rings = |name: &str| matches!(ebpf.map(name), Some(Map::RingBuf(_)));
        let found: BTreeMap<_, _> = ebpf
            .maps()
            .filter(|(name, _)| !rings(name) && !name.starts_with('.'))
            .map(|(name, map)| (name, info(map)))
            .collect();
        assert_eq!(found, wanted);
        assert!(rings("GATE_EVENTS") && rings("AYA_LOGS"));
    });
}

#[test]
fn the_kernel_accepts_every_program_and_there_are_no_others() {
    in_own_namespace(|| {
        let mut ebpf = load();
        let mut names: Vec<_> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
        names.sort();
        assert_eq!(names, ["relay", "steer"]);
        let relay: &mut SkSkb = ebpf.program_mut("relay").unwrap().try_into().unwrap();
        relay.load().unwrap();
        assert_eq!(relay.info().unwrap().name_as_str(), Some("relay"));
        let steer: &mut SkLookup = ebpf.program_mut("steer").unwrap().try_into().unwrap();
        steer.load().unwrap();
        assert_eq!(steer.info().unwrap().name_as_str(), Some("steer"));
    });
}

#[test]
fn signalbox_itself_loads_it_and_misses_nothing() {
    in_own_namespace(|| {
        let kernel = signalbox::kernel::Kernel::load().unwrap();
        assert_eq!(kernel.degraded, []);
        assert!(kernel.joiner.is_some() && kernel.gate_events.is_some());
        assert_eq!(kernel.counters.exits().len(), REASONS as usize);
    });
}

#[test]
fn what_a_program_logs_arrives_in_our_log() {
    in_own_namespace(|| {
        let mut ebpf = load();
        let said = Said::default();
        let mut logger = aya_log::EbpfLogger::init_with_logger(&mut ebpf, &said).unwrap();
        let steer: &mut SkLookup = ebpf.program_mut("steer").unwrap().try_into().unwrap();
        steer.load().unwrap();
        steer.attach(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        let mut bindings: LpmTrie<_, SteerKey, SteerValue> = ebpf.take_map("BINDINGS").unwrap().try_into().unwrap();
        let mut listeners: SockMap<_> = ebpf.take_map("LISTENERS").unwrap().try_into().unwrap();
        // An IPv6 socket where one for IPv4 belongs: the kernel refuses to give it an IPv4 connection.
        let wrong = TcpListener::bind("[::1]:0").unwrap();
        listeners.set(SLOT_V4, &wrong, 0).unwrap();
        let key = SteerKey::new(8443, 4, SteerKey::mapped([127, 0, 0, 1]));
        let to = SteerValue {
            listener: 0,
            slot: SLOT_V4,
        };
        bindings.insert(&Key::new(STEER_FIXED_BITS + 128, key), to, 0).unwrap();

        let refused = TcpStream::connect("127.0.0.1:8443").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let end = Instant::now() + Duration::from_secs(10);
        while said.0.lock().unwrap().is_empty() && Instant::now() < end {
            logger.flush();
            std::thread::sleep(Duration::from_millis(1));
        }
        let message = format!(
            "A steered connection was refused by the kernel: port=8443 errno=-{}",
            libc::EAFNOSUPPORT
        );
        assert_eq!(*said.0.lock().unwrap(), [(Level::Warn, message)]);
    });
}

/// A log that remembers.
#[derive(Default)]
struct Said(Mutex<Vec<(Level, String)>>);

impl Log for Said {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

fn load() -> Ebpf {
    let object = aya::include_bytes_aligned!(env!("SIGNALBOX_EBPF_OBJECT"));
    EbpfLoader::new().load(object).unwrap()
}

fn info(map: &Map) -> MapInfo {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::PerCpuArray(data)
        | Map::SockHash(data)
        | Map::SockMap(data) => data.info().unwrap(),
        other => panic!("a map of a kind that is not expected: {other:?}"),
    }
}

/// Runs a test in a network namespace of its own.
fn in_own_namespace<F: FnOnce() + Send>(work: F) {
    kernel::in_own_namespace(kernel::test_of::<F>(), ProgramType::SkLookup, &[], work);
}
