//! Programs and maps of object `steering`: `sk_lookup` and tier `sockmap`.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use aya::Ebpf;
use aya::maps::{Map, MapData, RingBuf, SockHash};
use aya::programs::SkSkb;
use signalbox_common::credit::MAX_CREDITS;

use crate::counters::Counters;
use crate::error::KernelError;
use crate::map::{Credits, lift_memory_limit};
use crate::object::{ObjectLoader, ProgramLog, STEERING, map_fd, program, program_log};
use crate::sockmap::SockmapPair;
use crate::steer::Steering;

/// Kernel objects of steering and of tier `sockmap`.
pub struct Kernel {
    /// The loaded object: dropping it unloads programs and maps.
    ebpf: Ebpf,
    pub counters: Arc<Counters>,
    /// Maps of tier `sockmap`, where the kernel has it.
    pub sockmap: Option<Arc<SockmapPair>>,
    /// Ring of credits that are exhausted.
    pub credit_events: Option<RingBuf<MapData>>,
    /// Features that are missing, each with the reason.
    pub degraded: Vec<(&'static str, String)>,
}

impl Kernel {
    /// Loads the object and prepares tier `sockmap`. Attaches nothing to the network yet.
    pub fn load(loader: &mut ObjectLoader) -> Result<Self, KernelError> {
        lift_memory_limit();
        let mut ebpf = loader.load(STEERING)?;
        let counters = Arc::new(Counters::new(&mut ebpf)?);
        let mut degraded = Vec::new();
        let (joiner, gate_events) = match Self::prepare_sockmap(&mut ebpf) {
            Ok((joiner, events)) => (Some(Arc::new(joiner)), Some(events)),
            Err(error) => {
                degraded.push(("sockmap", signalbox_sys::error_chain(&error)));
                (None, None)
            }
        };
        Ok(Self {
            ebpf,
            counters,
            sockmap: joiner,
            credit_events: gate_events,
            degraded,
        })
    }

    fn prepare_sockmap(ebpf: &mut Ebpf) -> Result<(SockmapPair, RingBuf<MapData>), KernelError> {
        let refused = |e| KernelError::of_program("sockmap_verdict", e);
        let unusable = |name: &'static str| {
            move |e| KernelError::Map {
                name,
                source: Box::new(e),
            }
        };
        let failed = |what: &'static str| move |source| KernelError::Io { what, source };

        program::<SkSkb>(ebpf, "sockmap_verdict")?.load().map_err(refused)?;
        let map = ebpf
            .map("SOCKMAP_SOCKETS")
            .ok_or(KernelError::NoMap("SOCKMAP_SOCKETS"))?;
        let verdicts = SockHash::<_, u64>::try_from(map).map_err(unusable("SOCKMAP_SOCKETS"))?;
        let attach_to = verdicts
            .fd()
            .try_clone()
            .map_err(failed("duplicating a map descriptor"))?;
        program::<SkSkb>(ebpf, "sockmap_verdict")?
            .attach(&attach_to)
            .map_err(refused)?;

        let credits = match ebpf.map("SOCKMAP_CREDITS") {
            Some(Map::Array(data)) => Credits::map(data.fd().as_fd(), MAX_CREDITS),
            _ => return Err(KernelError::NoMap("SOCKMAP_CREDITS")),
        };
        let credits = credits.map_err(failed("mapping SOCKMAP_CREDITS into memory (kernel 5.5 or later)"))?;
        let joiner = SockmapPair::new(
            map_fd(ebpf, "SOCKMAP_PEERS")?,
            map_fd(ebpf, "SOCKMAP_SOCKETS")?,
            map_fd(ebpf, "SOCKMAP_LEGS")?,
            credits,
        );
        let events = ebpf
            .take_map("SOCKMAP_CREDIT_EVENTS")
            .ok_or(KernelError::NoMap("SOCKMAP_CREDIT_EVENTS"))?;
        Ok((
            joiner,
            RingBuf::try_from(events).map_err(unusable("SOCKMAP_CREDIT_EVENTS"))?,
        ))
    }

    /// Attaches `sk_lookup` to our network namespace.
    pub fn steer(&mut self) -> Result<Steering, KernelError> {
        Steering::attach(&mut self.ebpf)
    }

    /// Returns the log of the object's programs.
    pub fn log(&mut self) -> Option<ProgramLog> {
        program_log(&mut self.ebpf)
    }
}
