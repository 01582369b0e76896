//! Ranks of the modules of core and of the product: a module may import those below its own rank, and no other. In
//! `common` and the HTTP datapath, the same between folders.

use super::modules::{Arrow, Modules};

/// Modules of `userspace/src` from the lowest to the highest, each with its description.
const RANKS: [(&str, &str); 8] = [
    ("state", "counters and snapshots that all threads share"),
    ("datapath", "workers: accept, peek, choose, dial, carry; tier cut"),
    (
        "reconcile",
        "threads that make the kernel's maps match the snapshot: layer-4 services, the shield, the kernel peek, flow GC",
    ),
    (
        "sync",
        "replication of cut flows to the other nodes that share virtual addresses",
    ),
    (
        "control",
        "the store, health, rotation, takeover, persistent state: decides, and publishes snapshots",
    ),
    ("admin", "the API, the metrics"),
    ("app", "composition of `signalbox run`"),
    ("cli", "the command line: `run`, `agent`, `check`, `demo`"),
];

/// Modules of `core/src` from the lowest to the highest, each with its description.
const CORE: [(&str, &str); 7] = [
    (
        "firewall",
        "what the rules of packet filters do to a listener's packets",
    ),
    (
        "wire",
        "formats of others: names, addresses, HTTP, first bytes, PROXY headers, YAML",
    ),
    ("model", "the meaning of a configuration"),
    (
        "limits",
        "limits and counts of sources, requests and handshakes; lists of clients",
    ),
    (
        "routing",
        "the choice for a connection: route, cluster, host, certificate; health and ejection",
    ),
    (
        "discovered",
        "names that clusters and applications report, and how they become routes; exports",
    ),
    ("availability", "virtual addresses, replication of flows, migrations"),
];

/// Crates whose modules have ranks.
const RANKED: [(&str, &[(&str, &str)]); 2] = [("core/src", &CORE), ("userspace/src", &RANKS)];

/// Folders of a module, each with those of them that it may import.
struct Folders {
    crate_root: &'static str,
    /// The module; empty for the crate itself.
    module: &'static [&'static str],
    allowed: &'static [(&'static str, &'static [&'static str])],
    /// Whether the module has no other folders, and its folders do not import the module itself, where anything may be
    /// re-exported.
    is_closed: bool,
    remedy: &'static str,
}

const FOLDERS: [Folders; 2] = [
    Folders {
        crate_root: "common/src",
        module: &[],
        allowed: &[
            ("net", &[]),
            ("shield", &["net"]),
            ("l4", &["net", "shield"]),
            ("cut", &["net"]),
            ("peek", &["net", "cut"]),
        ],
        is_closed: false,
        remedy: "move what both need into common/src/net",
    },
    Folders {
        crate_root: "userspace/src",
        module: &["datapath", "http"],
        allowed: &[
            ("drain", &[]),
            ("pages", &[]),
            ("timers", &[]),
            ("host_room", &[]),
            ("leg", &[]),
            ("message", &["leg", "drain"]),
            ("host", &["leg", "host_room"]),
            ("exchange", &["leg", "message", "host", "host_room", "pages"]),
            ("client", &["leg", "message", "exchange", "host_room", "pages"]),
        ],
        is_closed: true,
        remedy: "let `exchange`, which knows both, pass it on",
    },
];

/// Files of one folder that import each other in a circle are hard to read apart: this many are tolerated.
const MAX_CIRCLE: usize = 3;

/// Finds imports of a crate that run upwards, each with its place and the fix.
pub(super) fn check(crate_root: &str, modules: &Modules<'_>) -> Vec<String> {
    let Some((_, ranks)) = RANKED.iter().find(|(ranked, _)| *ranked == crate_root) else {
        return Vec::new();
    };
    let rank = |module: &str| ranks.iter().position(|(name, _)| *name == module);
    let mut faults = Vec::new();
    for ((from, to), places) in modules.between_tops() {
        let (Some(own), Some(imported)) = (rank(from), rank(to)) else {
            for module in [from, to].into_iter().filter(|module| rank(module).is_none()) {
                if module != "the root" && module != "main" {
                    faults.push(format!(
                        "{crate_root}/{module}: this module has no rank; give it one in xtask/src/deps/ranks.rs"
                    ));
                }
            }
            continue;
        };
        if imported > own {
            faults.extend(places.iter().map(|place| {
                format!(
                    "{place}: {from} may not import {to}, which ranks above it; move the item down, or let {from} own a \
                     message that {to} reads"
                )
            }));
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

/// Finds imports between folders that [`FOLDERS`] does not allow.
pub(super) fn check_folders(crate_root: &str, modules: &Modules<'_>) -> Vec<String> {
    let ruled = FOLDERS.iter().filter(|folders| folders.crate_root == crate_root);
    let mut faults: Vec<String> = ruled
        .flat_map(|folders| modules.all_arrows().filter_map(|arrow| folders.fault(arrow)))
        .collect();
    faults.sort();
    faults.dedup();
    faults
}

impl Folders {
    fn fault(&self, Arrow { from, to, import }: Arrow<'_>) -> Option<String> {
        let place = format!("{}:{} {}", from.name, import.line, import.path.join("::"));
        let from_folder = self.folder_of(&from.module)?;
        let Some((_, allowed)) = self.allowed.iter().find(|(folder, _)| folder == from_folder) else {
            return self.is_closed.then(|| {
                format!(
                    "{place}: {from_folder} is no folder that FOLDERS lists; give it a place in xtask/src/deps/ranks.rs"
                )
            });
        };
        // The path of the module alone is that of a visibility, such as `pub(in crate::datapath::http)`.
        if self.is_closed && to.module == self.module && import.path.len() > self.module.len() {
            return Some(format!(
                "{place}: {from_folder} imports the module above it; name the folder"
            ));
        }
        let to_folder = self.folder_of(&to.module)?;
        let is_ruled = self.is_closed || self.allowed.iter().any(|(folder, _)| folder == to_folder);
        let is_allowed = !is_ruled || from_folder == to_folder || allowed.contains(&to_folder.as_str());
        (!is_allowed).then(|| format!("{place}: {from_folder} may not import {to_folder}; {}", self.remedy))
    }

    /// Folder of the module that another module is in.
    fn folder_of<'m>(&self, module: &'m [String]) -> Option<&'m String> {
        let inner = module.get(self.module.len())?;
        let is_within = module.iter().zip(self.module).all(|(name, own)| name == own);
        is_within.then_some(inner)
    }
}

/// Finds circles of files that are larger than [`MAX_CIRCLE`].
pub(super) fn check_circles(modules: &Modules<'_>) -> Vec<String> {
    let too_large = modules.circles().into_iter().filter(|circle| circle.len() > MAX_CIRCLE);
    let named = too_large.map(|circle| {
        let names: Vec<&str> = circle.iter().map(|source| source.name.as_str()).collect();
        format!(
            "{} files import each other in a circle, {MAX_CIRCLE} may; move what ties them into a file of its own: {}",
            names.len(),
            names.join(", ")
        )
    });
    named.collect()
}

/// Returns the ranks as tables for docs/architecture.md, the highest first.
pub(super) fn table() -> String {
    let tables = RANKED.iter().rev().map(|(crate_root, ranks)| {
        let rows = ranks
            .iter()
            .rev()
            .map(|(name, what)| format!("| `{name}` | {what} |\n"));
        format!(
            "| Module of `{crate_root}` | What it is |\n|---|---|\n{}",
            rows.collect::<String>()
        )
    });
    tables.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let read = |(name, text): &(&str, &str)| Source::read(name, "userspace/src", text).unwrap();
        files.iter().map(read).collect()
    }

    #[test]
    fn an_import_upwards_is_named_with_its_place_and_the_remedy() {
        let sources = sources(&[
            ("userspace/src/datapath/dial.rs", "use crate::control::Store;"),
            (
                "userspace/src/control.rs",
                "use crate::datapath::dial;\npub struct Store;",
            ),
            ("userspace/src/control/health.rs", "use super::Store;"),
        ]);
        let faults = check("userspace/src", &Modules::of(&sources));
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(
            faults[0].starts_with("userspace/src/datapath/dial.rs:1 control::Store: datapath may not import control"),
            "{faults:?}"
        );
        assert!(faults[0].contains("move the item down"));
    }

    #[test]
    fn datapaths_share_what_is_in_net_and_do_not_import_each_other() {
        let files = [
            ("common/src/net/tuple.rs", "use crate::hash; pub struct Key;"),
            (
                "common/src/shield/admit.rs",
                "use crate::l4::track::is_syn; use crate::net::tuple::Key;",
            ),
            (
                "common/src/l4/track.rs",
                "use crate::shield::admit::admit; pub fn is_syn() {}",
            ),
            ("common/src/cut/track.rs", "use crate::net::tuple::Key;"),
            ("common/src/hash.rs", "pub fn mix() {}"),
        ];
        let read = |(name, text): &(&str, &str)| Source::read(name, "common/src", text).unwrap();
        let sources: Vec<Source> = files.iter().map(read).collect();
        assert_eq!(
            check_folders("common/src", &Modules::of(&sources)),
            [
                "common/src/shield/admit.rs:1 l4::track::is_syn: shield may not import l4; move what both need into \
              common/src/net"
            ]
        );
    }

    #[test]
    fn the_way_to_a_host_does_not_know_the_client() {
        let sources = sources(&[
            (
                "userspace/src/datapath/http/host/pool.rs",
                "use crate::datapath::http::client::Client; use crate::datapath::http::leg::Leg; pub struct Pool;",
            ),
            ("userspace/src/datapath/http/client.rs", "pub struct Client;"),
            ("userspace/src/datapath/http/leg.rs", "pub struct Leg;"),
            ("userspace/src/datapath/http/exchange.rs", "use super::pages;"),
            ("userspace/src/datapath/http/pages.rs", ""),
            ("userspace/src/datapath/relay.rs", "use super::http::host::pool::Pool;"),
        ]);
        assert_eq!(
            check_folders("userspace/src", &Modules::of(&sources)),
            [
                "userspace/src/datapath/http/host/pool.rs:1 datapath::http::client::Client: host may not import client; \
                 let `exchange`, which knows both, pass it on"
            ]
        );
    }

    #[test]
    fn ways_around_the_rule_of_folders_are_found() {
        let faults = |text| {
            let sources = sources(&[
                ("userspace/src/datapath/http.rs", "pub(super) use client::Client;"),
                ("userspace/src/datapath/http/client.rs", "pub struct Client;"),
                ("userspace/src/datapath/http/leg.rs", "pub struct Leg;"),
                ("userspace/src/datapath/http/host/pool.rs", text),
            ]);
            check_folders("userspace/src", &Modules::of(&sources)).len()
        };
        for text in [
            "use crate::datapath::http::Client;",
            "pub use crate::datapath::http::client::Client;",
            "use crate::datapath::http::{client, leg};",
            "fn f() { crate::datapath::http::client::g() }",
        ] {
            assert!(faults(text) > 0, "{text}");
        }
        for text in [
            "use crate::state::Shared;",
            "pub(in crate::datapath::http) struct Pool;",
        ] {
            assert_eq!(faults(text), 0, "{text}");
        }
        let sources = sources(&[
            ("userspace/src/datapath/http/client.rs", "pub struct Client;"),
            ("userspace/src/datapath/http/novelty.rs", "use super::client::Client;"),
        ]);
        let found = check_folders("userspace/src", &Modules::of(&sources));
        assert!(found[0].contains("novelty is no folder"), "{found:?}");
    }

    #[test]
    fn a_new_module_has_to_be_given_a_rank() {
        let sources = sources(&[
            ("userspace/src/novelty.rs", "use crate::state::Counter;"),
            ("userspace/src/state.rs", "pub struct Counter;"),
        ]);
        let faults = check("userspace/src", &Modules::of(&sources));
        assert!(
            faults[0].contains("userspace/src/novelty: this module has no rank"),
            "{faults:?}"
        );
    }

    #[test]
    fn a_circle_of_four_files_is_too_large_and_one_of_three_is_not() {
        let file = |name: &'static str, next: &'static str| (name, next);
        let mut files = vec![
            file("userspace/src/l4/a.rs", "use super::b::B; pub struct A;"),
            file("userspace/src/l4/b.rs", "use super::c::C; pub struct B;"),
            file("userspace/src/l4/c.rs", "use super::a::A; pub struct C;"),
        ];
        let three = sources(&files);
        assert_eq!(check_circles(&Modules::of(&three)), Vec::<String>::new());
        files[2].1 = "use super::d::D; pub struct C;";
        files.push(file("userspace/src/l4/d.rs", "use super::a::A; pub struct D;"));
        let four = sources(&files);
        let faults = check_circles(&Modules::of(&four));
        assert!(faults[0].starts_with("4 files import each other"), "{faults:?}");
    }

    #[test]
    fn the_table_has_a_row_for_each_rank() {
        assert_eq!(table().lines().count(), RANKS.len() + CORE.len() + 5);
        assert!(table().lines().nth(2).is_some_and(|line| line.starts_with("| `cli`")));
    }
}
