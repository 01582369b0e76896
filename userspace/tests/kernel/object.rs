//! The object as the kernel sees it: its maps have the sizes that `signalbox-common` says, the verifier accepts its
//! programs, and their log lines arrive.

use crate::logged::ProgramMessages;
use crate::namespace;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use aya::maps::lpm_trie::Key;
use aya::maps::{LpmTrie, Map, MapType, SockMap};
use aya::programs::{Program, ProgramType, SkLookup};
use aya::{Ebpf, EbpfLoader};
use log::Level;
use signalbox::kernel::object::{self, ObjectLoader};
use signalbox::kernel::peek::LinkedObject;
use signalbox::kernel::pins::temporary::TemporaryPins;
use signalbox_common::credit::{Credit, MAX_CREDITS, SockmapLeg};
use signalbox_common::cut::flow::{
    CutConfig, CutFlow, DEFAULT_FLOWS, ENDED_RING_BYTES, FlowRef, Handshake, MAX_CT_ENTRIES, MAX_HANDSHAKES, MAX_NAMES,
    Name, PENDING_PORTS,
};
use signalbox_common::cut::moving::{MAX_MOVING_ADDRESSES, MovingAddress};
use signalbox_common::l4::{self, abi};
use signalbox_common::net::target::PORT_BITMAP_WORDS;
use signalbox_common::net::{self, Target, Tuple};
use signalbox_common::reason::REASON_COUNT;
use signalbox_common::shield::prefixes::Node;
use signalbox_common::shield::{self, abi as rules};
use signalbox_common::steer::{
    MAX_BINDINGS, MAX_LISTENER_SLOTS, MAX_LISTENERS, SLOT_V4, STEER_FIXED_BITS, SteerKey, SteerValue,
};

/// Flags of `bpf(2)`, as in `ebpf/src`.
const NO_PREALLOC: u32 = 1;
const MMAPABLE: u32 = 1 << 10;

/// Type, size of a key, size of a value, elements, flags.
type Shape = (MapType, usize, usize, u32, u32);

#[test]
fn every_map_has_the_type_and_sizes_that_userspace_goes_by() {
    in_own_namespace(|| {
        for (object, wanted) in [
            (object::STEERING, [steering(), relayed(), counters()].concat()),
            (object::CUT_THROUGH, [cut(), names(), counters(), clock()].concat()),
            (
                object::LAYER4,
                [layer4(), guarded(), names(), counters(), clock()].concat(),
            ),
            (object::DECAP, counters()),
            (TESTING, vec![("IMPAIR", (MapType::Array, 4, size_of::<u32>(), 8, 0))]),
        ] {
            let ebpf = load(object, &TemporaryPins::new().unwrap());
            // The compiler's own (".rodata") and the log's have any size that they need.
            let found: BTreeMap<_, _> = ebpf
                .maps()
                .filter(|(name, _)| !name.starts_with('.') && *name != "AYA_LOGS")
                .map(|(name, map)| (name, shape(map)))
                .collect();
            assert_eq!(found, wanted.into_iter().collect());
            let logs = ebpf
                .programs()
                .any(|(name, _)| !matches!(name, "l4_decap" | "bare_tx" | "impair" | "impair_return"));
            assert_eq!(matches!(ebpf.map("AYA_LOGS"), Some(Map::RingBuf(_))), logs);
        }
    });
}

// Keys and values of 4 bytes without a type are array indices, and descriptors of sockets.

/// Maps of steering.
fn steering() -> Vec<(&'static str, Shape)> {
    let (key, value) = (size_of::<Key<SteerKey>>(), size_of::<SteerValue>());
    vec![
        (
            "STEER_BINDINGS",
            (MapType::LpmTrie, key, value, MAX_BINDINGS, NO_PREALLOC),
        ),
        ("STEER_LISTENERS", (MapType::SockMap, 4, 4, MAX_LISTENER_SLOTS, 0)),
        (
            "STEER_STATS",
            (MapType::PerCpuArray, 4, size_of::<u64>(), MAX_LISTENERS, 0),
        ),
    ]
}

fn counters() -> Vec<(&'static str, Shape)> {
    vec![("COUNTERS", (MapType::PerCpuArray, 4, size_of::<u64>(), REASON_COUNT, 0))]
}

fn clock() -> Vec<(&'static str, Shape)> {
    vec![("CLOCK_CACHE", (MapType::PerCpuArray, 4, 3 * size_of::<u64>(), 1, 0))]
}

fn names() -> Vec<(&'static str, Shape)> {
    vec![(
        "ID_NAMES",
        (MapType::Hash, 4, size_of::<Name>(), MAX_NAMES, NO_PREALLOC),
    )]
}

/// Maps of tier `sockmap`.
fn relayed() -> Vec<(&'static str, Shape)> {
    let (cookie, leg, credit) = (size_of::<u64>(), size_of::<SockmapLeg>(), size_of::<Credit>());
    vec![
        ("SOCKMAP_CREDITS", (MapType::Array, 4, credit, MAX_CREDITS, MMAPABLE)),
        ("SOCKMAP_CREDIT_EVENTS", (MapType::RingBuf, 0, 0, 256 * 1024, 0)),
        ("SOCKMAP_LEGS", (MapType::Hash, cookie, leg, MAX_CREDITS, NO_PREALLOC)),
        ("SOCKMAP_PEERS", (MapType::SockHash, cookie, 4, MAX_CREDITS, 0)),
        ("SOCKMAP_SOCKETS", (MapType::SockHash, cookie, 4, MAX_CREDITS, 0)),
    ]
}

/// Maps of tier `cut`.
fn cut() -> Vec<(&'static str, Shape)> {
    let tuple = size_of::<Tuple>();
    let (flow, handshake) = (size_of::<CutFlow>(), size_of::<Handshake>());
    let binding = size_of::<Key<SteerKey>>();
    vec![
        (
            "CUT_BINDINGS",
            (MapType::LpmTrie, binding, 4, MAX_BINDINGS, NO_PREALLOC),
        ),
        (
            "CUT_CHAIN",
            (MapType::Hash, 16, size_of::<MovingAddress>(), MAX_MOVING_ADDRESSES, 0),
        ),
        ("CUT_CONFIG", (MapType::Array, 4, size_of::<CutConfig>(), 1, 0)),
        ("CUT_FLOW_ENDED", (MapType::RingBuf, 0, 0, ENDED_RING_BYTES, 0)),
        ("CUT_FLOWS", (MapType::Array, 4, flow, DEFAULT_FLOWS, MMAPABLE)),
        (
            "CUT_PENDING",
            (MapType::Array, 4, size_of::<u64>(), PENDING_PORTS, MMAPABLE),
        ),
        (
            "CUT_HANDSHAKES",
            (MapType::LruHash, tuple, handshake, MAX_HANDSHAKES, 0),
        ),
        (
            "CUT_CT",
            (MapType::Hash, tuple, size_of::<FlowRef>(), MAX_CT_ENTRIES, 0),
        ),
    ]
}

/// Maps of the shield.
fn guarded() -> Vec<(&'static str, Shape)> {
    let (target, place, conn_count) = (
        size_of::<Target>(),
        size_of::<Key<SteerKey>>(),
        size_of::<shield::ConnCountKey>(),
    );
    let array = |size, count| (MapType::Array, 4, size, count, 0);
    let per_cpu = |size, count| (MapType::PerCpuArray, 4, size, count, 0);
    let hash = |key, count| (MapType::Hash, key, 4, count, NO_PREALLOC);
    vec![
        ("SHIELD_WILDCARD_PORTS", array(8, PORT_BITMAP_WORDS)),
        ("SHIELD_CONN_COUNT", hash(conn_count, rules::MAX_CONN_COUNTS)),
        (
            "SHIELD_SYN_RATES",
            array(size_of::<rules::SynRate>(), rules::MAX_GUARDS),
        ),
        ("SHIELD_GUARDS", array(size_of::<shield::Guard>(), rules::MAX_GUARDS)),
        // Userspace sets the real size.
        (
            "SHIELD_SHARED_PREFIXES",
            (MapType::Array, 4, size_of::<Node>(), 1, MMAPABLE),
        ),
        ("SHIELD_PORT_BITMAP", array(8, PORT_BITMAP_WORDS)),
        (
            "SHIELD_PREFIX_TARGETS",
            (MapType::LpmTrie, place, 4, rules::MAX_PREFIX_TARGETS, NO_PREALLOC),
        ),
        ("SHIELD_SAMPLE_QUOTA", per_cpu(8, 8)),
        (
            "SHIELD_GUARD_CACHE",
            per_cpu(size_of::<rules::CachedGuard>(), rules::GUARD_CACHE_ENTRIES),
        ),
        ("SHIELD_SAMPLES", (MapType::RingBuf, 0, 0, rules::SAMPLE_RING_BYTES, 0)),
        ("SHIELD_SETTINGS", array(size_of::<shield::Settings>(), 1)),
        (
            "SHIELD_SOURCES",
            array(size_of::<shield::Bucket>(), rules::DEFAULT_SOURCES / 4),
        ),
        // Userspace puts an array of maps in its place.
        ("SHIELD_GUARD_PREFIXES", array(4, rules::MAX_PREFIX_TABLES)),
        (
            "SHIELD_STATS",
            per_cpu(size_of::<rules::GuardStats>(), rules::MAX_GUARDS),
        ),
        ("SHIELD_TARGETS", hash(target, rules::MAX_TARGETS)),
    ]
}

/// Maps of layer-4 services.
fn layer4() -> Vec<(&'static str, Shape)> {
    let (key, flow, stats) = (
        size_of::<net::Key>(),
        size_of::<l4::L4Flow>(),
        size_of::<l4::ServiceStats>(),
    );
    let fragment = size_of::<l4::Fragment>();
    let (target, service) = (size_of::<Target>(), size_of::<l4::Service>());
    vec![
        // Userspace puts the map of tier cut in its place.
        (
            "CUT_HANDSHAKES",
            (MapType::LruHash, size_of::<Tuple>(), size_of::<Handshake>(), 1, 0),
        ),
        ("L4_CONFIG", (MapType::Array, 4, size_of::<l4::L4Config>(), 1, 0)),
        (
            "L4_CT_ESTABLISHED",
            (MapType::Hash, key, flow, 2 * abi::DEFAULT_FLOWS, NO_PREALLOC),
        ),
        ("L4_FRAGMENTS", (MapType::LruHash, fragment, 4, abi::MAX_FRAGMENTS, 0)),
        (
            "L4_HOSTS",
            (MapType::Array, 4, size_of::<l4::Host>(), abi::MAX_HOSTS, 0),
        ),
        ("L4_LOCAL_MACS", (MapType::Hash, 8, 4, abi::MAX_MACS, NO_PREALLOC)),
        ("L4_DSR_QUOTA", (MapType::Array, 4, size_of::<abi::DsrQuota>(), 1, 0)),
        ("L4_CT_HALF_OPEN", (MapType::LruHash, key, flow, abi::MAX_HALF_OPEN, 0)),
        ("L4_HOST_PORTS", (MapType::Hash, 4, 4, abi::MAX_HOST_PORTS, NO_PREALLOC)),
        (
            "L4_SCRATCH",
            (MapType::PerCpuArray, 4, size_of::<l4::PacketScratch>(), 1, 0),
        ),
        (
            "L4_SERVICES",
            (MapType::Hash, target, service, abi::MAX_TARGETS, NO_PREALLOC),
        ),
        (
            "L4_SERVICE_STATS",
            (MapType::PerCpuArray, 4, stats, abi::MAX_SERVICES, 0),
        ),
        ("L4_NAT_SOURCES", (MapType::Array, 4, 16, abi::MAX_NAT_SOURCES, 0)),
        // Userspace puts an array of maps in its place.
        ("L4_TABLES", (MapType::Array, 4, 4, abi::MAX_TABLES, 0)),
        ("L4_PORT_BITMAP", (MapType::Array, 4, 8, PORT_BITMAP_WORDS, MMAPABLE)),
    ]
}

#[test]
fn the_kernel_accepts_every_program_and_there_are_no_others() {
    in_own_namespace(|| {
        let kernel_peek = LinkedObject::new().bytes;
        let all = [
            (object::STEERING, &["sockmap_verdict", "steer"][..]),
            (object::CUT_THROUGH, &["cut_in", "cut_out"]),
            (&kernel_peek, &["peek_hold", "peek_in"]),
            (object::LAYER4, &["l4_tc", "l4_tc_ip", "l4_xdp"]),
            (object::DECAP, &["l4_decap"]),
            (TESTING, &["bare_tx", "impair", "impair_return"]),
        ];
        for (object, programs) in all {
            let mut ebpf = load(object, &TemporaryPins::for_test_run().unwrap());
            let mut names: Vec<_> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
            names.sort();
            assert_eq!(names, programs);
            for name in programs {
                let info = match ebpf.program_mut(name).unwrap() {
                    Program::Xdp(xdp) => xdp.load().and_then(|()| xdp.info()),
                    Program::SchedClassifier(classifier) => classifier.load().and_then(|()| classifier.info()),
                    Program::SkSkb(verdict) => verdict.load().and_then(|()| verdict.info()),
                    Program::SocketFilter(filter) => filter.load().and_then(|()| filter.info()),
                    Program::SkLookup(lookup) => lookup.load().and_then(|()| lookup.info()),
                    _ => panic!("{name} is of a type that no program of ours has"),
                };
                assert_eq!(info.unwrap().name_as_str(), Some(*name));
            }
        }
    });
}

#[test]
fn signalbox_itself_loads_it_and_misses_nothing() {
    in_own_namespace(|| {
        let kernel = signalbox::kernel::Kernel::load(&mut ObjectLoader::default()).unwrap();
        assert_eq!(kernel.degraded, []);
        assert!(kernel.sockmap.is_some() && kernel.credit_events.is_some());
        assert_eq!(kernel.counters.exit_counts().len(), REASON_COUNT as usize);
    });
}

#[test]
fn steering_takes_no_memory_for_the_tables_of_other_tiers() {
    in_own_namespace(|| {
        const MAX_BYTES: u64 = 16 << 20;
        let _kernel = signalbox::kernel::Kernel::load(&mut ObjectLoader::default()).unwrap();
        let files = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
        let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        let maps: Vec<_> = texts.filter(|text| text.contains("map_type:")).collect();
        let memory = |text: &String| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix("memlock:"))?;
            line.trim().parse().ok()
        };
        let bytes: u64 = maps.iter().filter_map(memory).sum();
        assert!(bytes > 0 && bytes < MAX_BYTES, "{bytes} bytes in {} maps", maps.len());
    });
}

#[test]
fn messages_of_an_ebpf_program_reach_our_log() {
    in_own_namespace(|| {
        let mut ebpf = load(object::STEERING, &TemporaryPins::new().unwrap());
        let mut messages = ProgramMessages::of(&mut ebpf);
        let steer: &mut SkLookup = ebpf.program_mut("steer").unwrap().try_into().unwrap();
        steer.load().unwrap();
        steer.attach(File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        let mut bindings: LpmTrie<_, SteerKey, SteerValue> =
            ebpf.take_map("STEER_BINDINGS").unwrap().try_into().unwrap();
        let mut listeners: SockMap<_> = ebpf.take_map("STEER_LISTENERS").unwrap().try_into().unwrap();
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
        let mut logged = messages.take();
        while logged.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            logged = messages.take();
        }
        let message = format!(
            "A steered connection was refused by the kernel: port=8443 errno=-{}",
            libc::EAFNOSUPPORT
        );
        assert_eq!(logged, [(Level::Warn, message)]);
    });
}

/// Object of programs that only tests attach.
const TESTING: &[u8] = aya::include_bytes_aligned!("../../../ebpf/prebuilt/testing.bpf.o");

fn load(object: &[u8], pins: &TemporaryPins) -> Ebpf {
    let mut loader = EbpfLoader::new();
    pins.set_pins(&mut loader);
    loader.load(object).unwrap()
}

fn shape(map: &Map) -> Shape {
    let info = match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data)
        | Map::SockHash(data)
        | Map::SockMap(data) => data.info().unwrap(),
        other => panic!("a map of a kind that is not expected: {other:?}"),
    };
    let (key, value) = (info.key_size() as usize, info.value_size() as usize);
    (
        info.map_type().unwrap(),
        key,
        value,
        info.max_entries(),
        info.map_flags(),
    )
}

/// Runs a test in a separate network namespace.
fn in_own_namespace<F: FnOnce() + Send>(work: F) {
    namespace::in_own_namespace(namespace::test_of::<F>(), ProgramType::SkLookup, &[], work);
}
