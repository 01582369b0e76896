//! `cut_in` and `cut_out`, loaded but attached to nothing, their maps, and the effects of one run.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use signalbox::kernel::object;
use signalbox::kernel::pins::temporary::TemporaryPins;
use signalbox_common::Reason;
use signalbox_common::cut::flow::{CutConfig, CutFlow, FlowRef, Handshake};
use signalbox_common::cut::moving::MovingAddress;
use signalbox_common::net::Tuple;
use signalbox_common::steer::{STEER_FIXED_BITS, SteerKey};

use super::outcome::{Action, Outcome};
use crate::logged::ProgramMessages;

/// Maps that are large and of which a test needs little or nothing.
const SMALL: [&str; 4] = ["ID_NAMES", "CUT_FLOWS", "CUT_CT", "CUT_HANDSHAKES"];

pub(crate) struct Programs {
    pub(crate) tuples: HashMap<MapData, Tuple, FlowRef>,
    pub(crate) flows: Array<MapData, CutFlow>,
    pub(crate) shakes: HashMap<MapData, Tuple, Handshake>,
    pending: Array<MapData, u64>,
    awaited: Vec<u16>,
    pub(crate) config: Array<MapData, CutConfig>,
    pub(crate) chain: HashMap<MapData, [u32; 4], MovingAddress>,
    bindings: LpmTrie<MapData, SteerKey, u32>,
    counters: PerCpuArray<MapData, u64>,
    ends: RingBuf<MapData>,
    pub(crate) messages: ProgramMessages,
    ebpf: Ebpf,
}

impl Programs {
    /// Returns the programs, shared by all tests, one after the other, with empty maps: the verifier takes a second
    /// for the two.
    pub(crate) fn fresh() -> MutexGuard<'static, Self> {
        static LOADED: OnceLock<Mutex<Programs>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Mutex::new(Self::load()));
        let mut programs = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        programs.clear();
        programs
    }

    fn clear(&mut self) {
        for tuple in self.tuples.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.tuples.remove(&tuple).unwrap();
        }
        for tuple in self.shakes.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.shakes.remove(&tuple).unwrap();
        }
        for key in self.bindings.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.bindings.remove(&key).unwrap();
        }
        for port in std::mem::take(&mut self.awaited) {
            self.pending.set(u32::from(port), 0, 0).unwrap();
        }
        for index in 0..self.flows.len() {
            self.flows.set(index, CutFlow::default(), 0).unwrap();
        }
        self.config.set(0, CutConfig::default(), 0).unwrap();
        for address in self.chain.keys().collect::<Result<Vec<_>, _>>().unwrap() {
            self.chain.remove(&address).unwrap();
        }
        self.told();
    }

    fn load() -> Self {
        let pins = TemporaryPins::new().unwrap();
        let mut loader = EbpfLoader::new();
        pins.set_pins(&mut loader);
        for name in SMALL {
            loader.map_max_entries(name, 64);
        }
        let mut ebpf = loader.load(object::CUT_THROUGH).unwrap();
        for name in ["cut_in", "cut_out"] {
            let program: &mut SchedClassifier = ebpf.program_mut(name).unwrap().try_into().unwrap();
            program.load().unwrap();
        }
        let messages = ProgramMessages::of(&mut ebpf);
        let mut take = |name: &str| -> Map { ebpf.take_map(name).unwrap() };
        Self {
            messages,
            tuples: take("CUT_CT").try_into().unwrap(),
            flows: take("CUT_FLOWS").try_into().unwrap(),
            shakes: take("CUT_HANDSHAKES").try_into().unwrap(),
            pending: take("CUT_PENDING").try_into().unwrap(),
            awaited: Vec::new(),
            config: take("CUT_CONFIG").try_into().unwrap(),
            chain: take("CUT_CHAIN").try_into().unwrap(),
            bindings: take("CUT_BINDINGS").try_into().unwrap(),
            counters: take("COUNTERS").try_into().unwrap(),
            ends: take("CUT_FLOW_ENDED").try_into().unwrap(),
            ebpf,
        }
    }

    pub(crate) fn bind(&mut self, key: SteerKey) {
        self.bindings
            .insert(&Key::new(STEER_FIXED_BITS + 128, key), 1, 0)
            .unwrap();
    }

    /// Leg B of the flow at `index` is about to be connected from this port.
    pub(crate) fn expect_from(&mut self, port: u16, index: u32) {
        self.pending.set(u32::from(port), u64::from(index) + 1, 0).unwrap();
        self.awaited.push(port);
    }

    /// Leaves room for `room` entries.
    pub(crate) fn fill_tuples(&mut self, room: u32) {
        let of = |ports| Tuple {
            ports,
            ..Tuple::default()
        };
        let full = (0..).find(|&ports| self.tuples.insert(of(ports), FlowRef::default(), 0).is_err());
        for ports in full.unwrap() - room..full.unwrap() {
            self.tuples.remove(&of(ports)).unwrap();
        }
    }

    /// `cut_in`, for tests that run it in another way.
    pub(crate) fn cut_in(&mut self) -> &mut SchedClassifier {
        self.ebpf.program_mut("cut_in").unwrap().try_into().unwrap()
    }

    /// Runs `cut_in` on a packet that arrives at the interface `ifindex`.
    pub(crate) fn arrives(&self, bytes: &[u8], ifindex: u32) -> Outcome {
        self.run("cut_in", bytes, 0, ifindex, 0)
    }

    /// Runs a program on a packet that represents several, each with `segment` bytes of payload.
    pub(crate) fn arrives_as_super_packet(&self, bytes: &[u8], ifindex: u32, segment: u32) -> Outcome {
        self.run("cut_in", bytes, 0, ifindex, segment)
    }

    /// Runs `cut_out` on a packet that leaves by the interface `ifindex`; `came_by` another one, if it is no packet of
    /// the machine's own.
    pub(crate) fn leaves(&self, bytes: &[u8], came_by: u32, ifindex: u32) -> Outcome {
        self.run("cut_out", bytes, came_by, ifindex, 0)
    }

    fn run(&self, name: &str, bytes: &[u8], came_by: u32, ifindex: u32, segment: u32) -> Outcome {
        let program: &SchedClassifier = self.ebpf.program(name).unwrap().try_into().unwrap();
        // The beginning of `struct __sk_buff`; the rest is zero.
        let mut context = [0u32; 45];
        (context[9], context[10], context[44]) = (came_by, ifindex, segment);
        let context: Vec<u8> = context.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut after = vec![0; bytes.len() + 64];
        let counted = self.counted();
        let run = program
            .test_run(TestRunOptions {
                data_in: Some(bytes),
                data_out: Some(&mut after),
                ctx_in: Some(&context),
                ..TestRunOptions::default()
            })
            .unwrap();
        after.truncate(run.data_size_out as usize);
        let action = match run.return_value as i32 {
            -1 => Action::Pass,
            2 => Action::Drop,
            7 => Action::Redirect,
            other => panic!("an action that is not ours: {other}"),
        };
        let reasons = self.counted().into_iter().zip(counted).zip(Reason::ALL);
        let reasons =
            reasons.flat_map(|((after, before), reason)| std::iter::repeat_n(*reason, (after - before) as usize));
        Outcome {
            action,
            reasons: reasons.collect(),
            bytes: after,
        }
    }

    fn counted(&self) -> Vec<u64> {
        let of = |at| self.counters.get(&at, 0).unwrap().iter().sum();
        (0..self.counters.len()).map(of).collect()
    }

    /// Indices of the flows that userspace has been informed of since the last call.
    pub(crate) fn told(&mut self) -> Vec<u32> {
        let mut indices = Vec::new();
        while let Some(item) = self.ends.next() {
            indices.push(u32::from_ne_bytes(*item.first_chunk().unwrap()));
        }
        indices
    }
}
