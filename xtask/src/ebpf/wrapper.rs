//! xtask as cargo's RUSTC_WRAPPER, for the eBPF build only. It changes two things that nothing else can:
//!
//! - cargo derives `-C metadata` of a path dependency outside the workspace root (`../common`) from its absolute path,
//!   and rustc puts it into every symbol. Two checkouts would give two objects. A crate's name and version are enough:
//!   there is one of each in this build.
//! - bpf-linker opens the first libLLVM in LD_LIBRARY_PATH, which rustup sets to another compiler's. The wrapper gives it
//!   that of the compiler whose output it reads.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

/// Variable that is set when cargo runs us as the wrapper; its value is the folder that holds LLVM.
pub(super) const MARK: &str = "XTASK_RUSTC_WRAPPER_LLVM";

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

pub(crate) fn is_asked_for() -> bool {
    env::var_os(MARK).is_some()
}

/// Replaces this process by rustc.
pub(crate) fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let Some(rustc) = args.next() else {
        eprintln!("{MARK} is set, but cargo gave no compiler; unset it");
        return ExitCode::FAILURE;
    };
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let mut command = Command::new(&rustc);
    command.args(rewritten(args.collect(), &version));
    if let Some(dir) = env::var_os(MARK) {
        let rest = env::var_os(LIBRARY_PATH).unwrap_or_default();
        let dirs = std::iter::once(dir.into()).chain(env::split_paths(&rest));
        if let Ok(path) = env::join_paths(dirs) {
            command.env(LIBRARY_PATH, path);
        }
    }
    let error = command.exec();
    eprintln!("{} cannot be started: {error}", rustc.display());
    ExitCode::FAILURE
}

/// Arguments with `-C metadata` replaced. Host crates (build scripts, proc macros) leave nothing in the object.
fn rewritten(mut args: Vec<OsString>, version: &str) -> Vec<OsString> {
    let after = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let is_bpf = after("--target").is_some_and(|target| target.to_string_lossy().starts_with("bpf"));
    let Some(name) = after("--crate-name")
        .filter(|_| is_bpf)
        .map(|name| name.to_string_lossy().into_owned())
    else {
        return args;
    };
    for arg in &mut args {
        if arg.as_os_str().to_string_lossy().starts_with("metadata=") {
            *arg = OsStr::new(&format!("metadata={name}-{version}")).to_owned();
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(line: &str) -> String {
        let args = rewritten(line.split(' ').map(OsString::from).collect(), "0.1.0");
        args.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn only_bpf_crates_get_metadata_independent_of_the_checkout() {
        assert_eq!(
            rewrite("--crate-name common -C metadata=1f2e --target bpfel-unknown-none -C extra-filename=-1f2e"),
            "--crate-name common -C metadata=common-0.1.0 --target bpfel-unknown-none -C extra-filename=-1f2e"
        );
        let host = "--crate-name syn -C metadata=1f2e";
        assert_eq!(rewrite(host), host);
        assert_eq!(rewrite("-vV"), "-vV");
    }
}
