//! Rules for sources by their place: which of them may name aya and rustls, and use unsafe.

use super::code::only_code;

/// Paths where aya may be named. They are prefixes.
const AYA: [&str; 4] = ["bench/src/bpf.rs", "common/", "userspace/kernel/", "userspace/tests/"];

/// Paths where rustls and tokio-rustls may be named, so that keys and sessions stay in few places.
const RUSTLS: [&str; 8] = [
    "bench/",
    "userspace/compat/",
    "userspace/sources/",
    "userspace/src/admin/",
    "userspace/src/cli/demo/",
    "userspace/src/control/health/",
    "userspace/tests/",
    "userspace/tls/",
];

const UNSAFE: [&str; 7] = [
    "bench/",
    "common/",
    "ebpf/",
    "userspace/kernel/",
    "userspace/src/datapath",
    "userspace/sys/",
    "userspace/tests/",
];

/// Finds breaches in the file `name` (relative to the root), each with its line.
pub(super) fn check(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let may = |places: &[&str]| places.iter().any(|place| name.starts_with(place));
    for (number, line) in only_code(text).lines().enumerate() {
        let at = format!("{name}:{}", number + 1);
        if names_aya(line) && !may(&AYA) {
            faults.push(format!(
                "{at}: aya is used only by userspace/kernel (and common for feature `user`, and bench to count runs of programs)"
            ));
        }
        if names_rustls(line) && !may(&RUSTLS) {
            faults.push(format!(
                "{at}: rustls is used only by userspace/tls, by sources, admin and health, which speak TLS of their own, and by the demo"
            ));
        }
        if has_word(line, "unsafe") && !may(&UNSAFE) {
            faults.push(format!(
                "{at}: unsafe belongs in ebpf, common, userspace/kernel, userspace/sys, userspace::datapath or bench"
            ));
        }
    }
    faults
}

pub(super) fn core_forbids_unsafe(lib: &str) -> Option<String> {
    let forbids = only_code(lib)
        .lines()
        .any(|line| line.trim() == "#![forbid(unsafe_code)]");
    (!forbids).then(|| "core/src/lib.rs: has no #![forbid(unsafe_code)]".to_owned())
}

fn names_aya(line: &str) -> bool {
    let imports = line.trim_start().trim_start_matches("pub ").starts_with("use ") && has_word(line, "aya");
    imports || words(line, "aya").any(|end| line[end..].starts_with("::"))
}

fn names_rustls(line: &str) -> bool {
    ["rustls", "tokio_rustls"].into_iter().any(|name| has_word(line, name))
}

fn has_word(line: &str, word: &str) -> bool {
    words(line, word).next().is_some()
}

/// Ends of the places where `word` is a whole word.
fn words(line: &str, word: &str) -> impl Iterator<Item = usize> {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).filter_map(move |(at, _)| {
        let end = at + word.len();
        let alone = !line[..at].ends_with(is_ident) && !line[end..].starts_with(is_ident);
        alone.then_some(end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aya_is_for_the_kernel_module_alone() {
        for line in [
            "use aya::Ebpf;",
            "let x = aya::maps::Map;",
            "    pub use aya as loader;",
            "use aya;",
        ] {
            assert_eq!(check("userspace/src/store/mod.rs", line).len(), 1, "{line}");
            assert!(check("core/src/lib.rs", line)[0].starts_with("core/src/lib.rs:1: aya"));
            for place in [
                "userspace/kernel/src/lib.rs",
                "userspace/kernel/src/load.rs",
                "userspace/tests/kernel_maps.rs",
            ] {
                assert_eq!(check(place, line), Vec::<String>::new());
            }
        }
        for line in [
            "// aya::Ebpf loads it",
            "/* use aya */",
            "let s = \"aya::\";",
            "use aya_ebpf::maps;",
            "maya::x();",
        ] {
            assert_eq!(
                check("userspace/src/store/mod.rs", line),
                Vec::<String>::new(),
                "{line}"
            );
        }
    }

    #[test]
    fn rustls_is_for_tls_and_for_those_who_speak_it_themselves() {
        for line in [
            "use rustls::ServerConfig;",
            "let acceptor: tokio_rustls::TlsAcceptor = x;",
        ] {
            assert_eq!(check("userspace/src/datapath/relay.rs", line).len(), 1, "{line}");
            for place in ["userspace/tls/src/server.rs", "userspace/src/admin/tls.rs"] {
                assert_eq!(check(place, line), Vec::<String>::new(), "{line}");
            }
        }
        assert_eq!(
            check("userspace/src/datapath/relay.rs", "// rustls"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn unsafe_is_for_the_edges_alone() {
        let text = "fn a() {}\nunsafe fn b() {}\n";
        assert!(check("userspace/src/config/mod.rs", text)[0].starts_with("userspace/src/config/mod.rs:2: unsafe"));
        assert_eq!(check("core/src/routing/plan.rs", "let x = unsafe { *p };").len(), 1);
        assert_eq!(check("userspace/sys/src/lib.rs", text), Vec::<String>::new());
        assert_eq!(
            check("core/src/lib.rs", "#![forbid(unsafe_code)] // no unsafe"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn the_core_has_to_forbid_it_in_code_and_not_in_a_comment() {
        assert_eq!(core_forbids_unsafe("//! Brain.\n#![forbid(unsafe_code)]\n"), None);
        assert!(core_forbids_unsafe("// #![forbid(unsafe_code)]\n").is_some());
        assert!(core_forbids_unsafe("#![deny(unsafe_code)]\n").is_some());
    }
}
