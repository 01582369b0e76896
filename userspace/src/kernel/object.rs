//! Loads the eBPF object and hands out its programs and maps.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use aya::maps::{Map, MapData, RingBuf, SockHash};
use aya::programs::SkSkb;
use aya::{Ebpf, EbpfLoader};
use signalbox_common::credit::MAX_CREDITS;
use signalbox_common::parts;
use thiserror::Error;

use super::capabilities::{self, CapabilityUse};
use super::counters::Counters;
use super::map::{Credits, MapFd};
use super::sockmap::SockmapPair;
use super::steer::Steering;

/// The eBPF object, built from `ebpf/` by `cargo xtask build-ebpf`; build.rs decides which file that is.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("SIGNALBOX_EBPF_OBJECT"));

/// Maps of steering and tier `sockmap` with many entries: other copies of the object shrink each to one entry.
pub const STEERING_MAPS: [&str; 6] = [
    "SOCKMAP_PEERS",
    "SOCKMAP_SOCKETS",
    "SOCKMAP_LEGS",
    "SOCKMAP_CREDITS",
    "STEER_BINDINGS",
    "STEER_STATS",
];

/// Returns the object's bytes.
#[must_use]
pub fn bytes() -> &'static [u8] {
    OBJECT
}

/// Reason why programs or maps are not in the kernel.
#[derive(Debug, Error)]
pub enum KernelError {
    #[error(
        "loading the eBPF object failed{}",
        capabilities::missing_text(CapabilityUse::Programs)
    )]
    Load(#[source] Box<aya::EbpfError>),
    #[error("the eBPF object has no map {0}: it was built from other sources, run `cargo xtask build-ebpf`")]
    NoMap(&'static str),
    #[error("the eBPF object has no program {0}: it was built from other sources, run `cargo xtask build-ebpf`")]
    NoProgram(&'static str),
    #[error("map {name} is not usable")]
    Map {
        name: &'static str,
        #[source]
        source: Box<aya::maps::MapError>,
    },
    #[error("program {name} was not accepted by the kernel")]
    Program {
        name: &'static str,
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    /// The verifier has refused the program, and always will on this kernel.
    #[error(
        "the kernel refuses program {name}: {reason} ({error}); {}",
        super::version::remedy()
    )]
    Refused {
        name: &'static str,
        reason: String,
        error: io::Error,
    },
    #[error("the kernel takes program {name} only from who has {capability}, and this process has not")]
    MissingCapability {
        name: &'static str,
        capability: &'static str,
    },
    #[error("this kernel has no {what}; {}", super::version::remedy())]
    Unsupported { what: &'static str },
    #[error("{what} failed")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl KernelError {
    /// Converts the error of a program that was not loaded.
    pub(super) fn of_program(name: &'static str, error: aya::programs::ProgramError) -> Self {
        let lacking = capabilities::missing_for(CapabilityUse::Rewriting);
        match (error, lacking) {
            // The verifier's reason would blame the program, which is right; the missing capability is the cause.
            (aya::programs::ProgramError::LoadError { io_error, .. }, Some(capability))
                if io_error.kind() == io::ErrorKind::PermissionDenied =>
            {
                Self::MissingCapability { name, capability }
            }
            (aya::programs::ProgramError::LoadError { io_error, verifier_log }, _) => {
                let log = verifier_log.to_string();
                let reason = match io_error.raw_os_error() {
                    // Before 6.4 the kernel refuses a program whose verifier log does not fit.
                    Some(libc::ENOSPC) => Some("the verifier walks too far to say why".to_owned()),
                    _ => super::verifier::reason(&log),
                };
                let Some(reason) = reason else {
                    let source = aya::programs::ProgramError::LoadError { io_error, verifier_log };
                    return Self::Program {
                        name,
                        source: Box::new(source),
                    };
                };
                tracing::debug!(name, log, "The kernel's verifier refused a program.");
                Self::Refused {
                    name,
                    reason,
                    error: io_error,
                }
            }
            (source, _) => Self::Program {
                name,
                source: Box::new(source),
            },
        }
    }

    /// Returns whether another attempt would end in the same way, for as long as this kernel runs.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::MissingCapability { .. }
                | Self::Unsupported { .. }
                | Self::NoMap(_)
                | Self::NoProgram(_)
        )
    }
}

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
    pub fn load() -> Result<Self, KernelError> {
        lift_memory_limit();
        let mut loader = EbpfLoader::new();
        for name in super::cut::CUT_MAPS.into_iter().chain(super::l4::L4_MAPS) {
            loader.map_max_entries(name, 1);
        }
        let mut ebpf = loader.load(OBJECT).map_err(|e| KernelError::Load(Box::new(e)))?;
        let counters = Arc::new(Counters::new(&mut ebpf)?);
        let mut degraded = Vec::new();
        let (joiner, gate_events) = match Self::prepare_sockmap(&mut ebpf) {
            Ok((joiner, events)) => (Some(Arc::new(joiner)), Some(events)),
            Err(error) => {
                degraded.push(("sockmap", crate::sys::error_chain(&error)));
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

    /// Forwards log messages of the eBPF programs to ours.
    pub fn logger(&mut self) -> Result<aya_log::EbpfLogger<&'static dyn log::Log>, String> {
        aya_log::EbpfLogger::init(&mut self.ebpf).map_err(|error| error.to_string())
    }
}

/// Fails for what `SIGNALBOX_REFUSE` lists, so that tests can refuse programs on kernels that take them all: programs
/// by their names, and parts of them as `services`, `shield` and `cut_ipv6`.
pub(super) fn refused_for_tests(name: &'static str, parts: u32) -> Result<(), KernelError> {
    let Ok(list) = std::env::var("SIGNALBOX_REFUSE") else {
        return Ok(());
    };
    let part = |word: &str| match word {
        "services" => parts & parts::SERVICES != 0 && name.starts_with("l4_"),
        "shield" => parts & parts::SHIELD != 0 && name.starts_with("l4_"),
        // `whole` refuses services and shield together; each alone is accepted.
        "whole" => parts & parts::ALL & !parts::CUT_V6 == parts::SHIELD | parts::SERVICES && name.starts_with("l4_"),
        "cut_ipv6" => parts & parts::CUT_V6 != 0 && name.starts_with("cut_"),
        word => word == name,
    };
    if list.split(',').any(part) {
        return Err(KernelError::Refused {
            name,
            reason: "SIGNALBOX_REFUSE names it".into(),
            error: io::Error::from_raw_os_error(libc::EACCES),
        });
    }
    Ok(())
}

/// Lifts RLIMIT_MEMLOCK, which limits BPF memory before 5.11; later kernels charge the cgroup.
pub(super) fn lift_memory_limit() {
    let _ = nix::sys::resource::setrlimit(
        nix::sys::resource::Resource::RLIMIT_MEMLOCK,
        nix::libc::RLIM_INFINITY,
        nix::libc::RLIM_INFINITY,
    );
}

/// Duplicates a map's descriptor.
pub(super) fn map_fd(ebpf: &Ebpf, name: &'static str) -> Result<MapFd, KernelError> {
    let Some(
        Map::SockHash(data)
        | Map::SockMap(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::LpmTrie(data)
        | Map::Array(data),
    ) = ebpf.map(name)
    else {
        return Err(KernelError::NoMap(name));
    };
    MapFd::new(data.fd().as_fd()).map_err(|source| KernelError::Io {
        what: "duplicating a map descriptor",
        source,
    })
}

/// Returns a program by its name.
pub(super) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, KernelError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    ebpf.program_mut(name)
        .ok_or(KernelError::NoProgram(name))?
        .try_into()
        .map_err(|e| KernelError::Program {
            name,
            source: Box::new(e),
        })
}
