//! The eBPF objects, embedded; and the common parts of loading them.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use aya::maps::Map;
use aya::{Ebpf, EbpfLoader};
use signalbox_common::parts;

use crate::error::KernelError;
use crate::map::MapFd;

/// Embeds an object, built from `ebpf/` by `cargo xtask build-ebpf`; build.rs decides in which directory it is.
macro_rules! object {
    ($file:literal) => {
        aya::include_bytes_aligned!(concat!(env!("SIGNALBOX_EBPF_OBJECTS"), "/", $file))
    };
}

/// Programs `steer` and `sockmap_verdict`.
pub const STEERING: &[u8] = object!("steering.bpf.o");
/// Programs `cut_in` and `cut_out`.
pub const CUT_THROUGH: &[u8] = object!("cut_through.bpf.o");
/// Program `peek_in`, which calls functions of the kernel: see [`crate::peek`].
pub const KERNEL_PEEK: &[u8] = object!("kernel_peek.bpf.o");
/// Programs `l4_xdp` and `l4_tc`.
pub const LAYER4: &[u8] = object!("layer4.bpf.o");
/// Program `l4_decap`, for the hosts of services.
pub const DECAP: &[u8] = object!("decap.bpf.o");

/// All objects that load as they are.
pub const SHIPPED: [&[u8]; 4] = [STEERING, CUT_THROUGH, LAYER4, DECAP];

/// Loads the objects of a start, one after the other. aya reads the kernel's types for each loader, which takes 25 ms.
#[derive(Default)]
pub struct ObjectLoader(pub(crate) EbpfLoader<'static>);

impl ObjectLoader {
    pub(crate) fn load(&mut self, object: &[u8]) -> Result<Ebpf, KernelError> {
        self.0.load(object).map_err(|e| KernelError::Load(Box::new(e)))
    }
}

/// Messages of an object's programs (`AYA_LOGS`), which [`aya_log::EbpfLogger::flush`] writes to our log.
pub type ProgramLog = aya_log::EbpfLogger<&'static dyn log::Log>;

/// Opens the log of an object's programs; `None` where that fails, because the programs work without it.
pub(crate) fn program_log(ebpf: &mut Ebpf) -> Option<ProgramLog> {
    let log = aya_log::EbpfLogger::init(ebpf);
    log.inspect_err(|error| tracing::debug!(%error, "The eBPF programs' messages are not shown."))
        .ok()
}

/// Fails for what `SIGNALBOX_REFUSE` lists, so that tests can refuse programs on kernels that take them all: programs
/// by their names, and parts of them as `services`, `shield` and `cut_ipv6`. `NAME@FILE` has the load of a program wait
/// until the file exists, as on a machine where the verifier takes long.
pub(crate) fn refused_for_tests(name: &'static str, parts: u32) -> Result<(), KernelError> {
    let Ok(list) = std::env::var("SIGNALBOX_REFUSE") else {
        return Ok(());
    };
    let part = |word: &str| match word {
        "services" => parts & parts::SERVICES != 0 && name.starts_with("l4_"),
        "shield" => parts & parts::SHIELD != 0 && name.starts_with("l4_"),
        // `whole` refuses services and shield together; each alone is accepted.
        "whole" => parts & parts::ALL & !parts::CUT_V6 == parts::SHIELD | parts::SERVICES && name.starts_with("l4_"),
        "cut_ipv6" => parts & parts::CUT_V6 != 0 && name.starts_with("cut_"),
        word => match word.split_once('@') {
            Some((slow, file)) if slow == name => {
                tracing::warn!(
                    name,
                    file,
                    "SIGNALBOX_REFUSE has the load of a program wait for a file."
                );
                while !Path::new(file).exists() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                false
            }
            _ => word == name,
        },
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

/// Duplicates a map's descriptor.
pub(crate) fn map_fd(ebpf: &Ebpf, name: &'static str) -> Result<MapFd, KernelError> {
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
pub(crate) fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, KernelError>
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
