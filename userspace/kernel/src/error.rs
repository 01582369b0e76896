//! Reasons why programs or maps are not in the kernel.

use std::io;

use thiserror::Error;

use crate::capabilities::{self, CapabilityUse};

/// Reason why programs or maps are not in the kernel.
#[derive(Debug, Error)]
pub enum KernelError {
    #[error(
        "loading an eBPF object failed{}",
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
        crate::version::remedy()
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
    #[error("this kernel has no {what}; {}", crate::version::remedy())]
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
    pub(crate) fn of_program(name: &'static str, error: aya::programs::ProgramError) -> Self {
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
                    _ => crate::verifier::reason(&log),
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

    /// Returns whether the kernel has refused a program although it has all functions that the program needs.
    #[must_use]
    pub fn is_unexpected_refusal(&self) -> bool {
        matches!(self, Self::Refused { reason, .. } if !crate::verifier::is_of_old_kernel(reason))
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
