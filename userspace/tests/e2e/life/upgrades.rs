//! Upgrades: flows of a version whose pinned maps have another layout are carried over by the next version, and back
//! again in the same way.

use crate::lab;

use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;

use lab::cut::{self, CutLab, Hosts, doors, expect_none, finish, known};
use lab::services::{echo, greeter, greeting};
use lab::tiers::ping;
use lab::{Lab, SOON, Signalbox, eventually, exchange, privileged};

const MIB: u64 = 1 << 20;

/// A product whose maps have another layout. `None` if it has not been built, which fails where tests must run.
pub(crate) fn other_version(test: &str) -> Option<PathBuf> {
    if !privileged(test) || cut::lenient() {
        return None;
    }
    let program = std::env::var_os("SIGNALBOX_NEXT_BIN").map(PathBuf::from);
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
    let why = "SIGNALBOX_NEXT_BIN names no product with other maps (`cargo xtask test --only e2e` builds one)";
    assert!(program.is_some() || !required, "{test} cannot run: {why}");
    if program.is_none() {
        println!("SKIP {test}: {why}");
    }
    program
}

/// Versions that have pinned something for the balancer of this lab.
fn versions(lab: &Lab) -> Vec<String> {
    let dirs = ["net", "l4-net"].into_iter().flat_map(|kind| cut::pins_of(lab, kind));
    let mut versions: Vec<String> = dirs
        .filter_map(|dir| Some(dir.parent()?.file_name()?.to_string_lossy().into_owned()))
        .collect();
    versions.sort();
    versions.dedup();
    versions
}

/// Flows go through a change of version and back while bytes are under way, and so do idle ones.
fn there_and_back(lab: &CutLab, next: PathBuf, mut change: impl FnMut(&mut Signalbox)) {
    let hosts = Hosts::start(lab);
    let (_health, mut sb) = cut::start(lab, "");
    let idle: Vec<_> = doors().iter().map(|door| door.enter_cut(lab, &sb, &hosts)).collect();
    let mut before = known(&sb);
    for program in [Some(next), None] {
        let busy: Vec<_> = doors().iter().map(|door| door.enter_cut(lab, &sb, &hosts)).collect();
        lab.set_program(program.unwrap_or_else(|| lab::signalbox::binary().into()));
        thread::scope(|scope| {
            for (n, (client, host)) in (0..).zip(&busy) {
                scope.spawn(move || exchange::serve(host).unwrap());
                scope.spawn(move || exchange::client(client, n, 24 * MIB, 24 * MIB).unwrap());
            }
            change(&mut sb);
        });
        let carried = eventually(SOON, || known(&sb) == before);
        assert!(carried, "{:?}\n{before:?}\n{}", known(&sb), sb.proc.log());
        assert!(eventually(SOON, || versions(lab).len() == 1), "{:?}", versions(lab));
        for (client, host) in &idle {
            ping(client, host);
        }
        // The pings' bytes are counted.
        let counted = |flow: &Vec<String>| flow[9].trim_matches('"').parse::<u64>().unwrap();
        let total = |flows: &[Vec<String>]| flows.iter().map(counted).sum::<u64>();
        let want = total(&before) + 5 * idle.len() as u64;
        let now = eventually(SOON, || total(&known(&sb)) == want);
        assert!(now, "{:?}, {want} bytes are wanted", known(&sb));
        before = known(&sb);
    }
    for (client, host) in &idle {
        finish(client, host);
    }
    expect_none(&sb);
}

#[test]
fn flows_are_carried_over_to_another_version_and_back() {
    let Some(next) = other_version("flows_are_carried_over_to_another_version_and_back") else {
        return;
    };
    let lab = cut::lab();
    let config = lab.dir().join("signalbox.yaml");
    there_and_back(&lab, next, |sb| {
        sb.kill9();
        *sb = Signalbox::start_file(&lab, "another", &config, &[]);
    });
}

#[test]
fn filters_of_another_version_are_replaced_without_packet_loss() {
    let Some(next) = other_version("filters_of_another_version_are_replaced_without_packet_loss") else {
        return;
    };
    let lab = cut::lab();
    // The variable makes it as on a kernel before 6.6.
    lab.set_env("SIGNALBOX_CLSACT", "1");
    let config = lab.dir().join("signalbox.yaml");
    there_and_back(&lab, next, |sb| {
        sb.kill9();
        *sb = Signalbox::start_file(&lab, "another", &config, &[]);
    });
    // Each program has one filter. The kernel peek's comes later, and only if names are peeked at in the kernel.
    let are_alone = || {
        let filters = lab.lb.must(&["tc", "filter", "show", "dev", "client", "ingress"]);
        let count = |program: &str| filters.matches(&format!("{program} direct-action")).count();
        count("cut_in") == 1 && count("peek_in") <= 1 && count("") == 1 + count("peek_in")
    };
    assert!(eventually(SOON, are_alone), "other filters are left");
}

#[test]
fn another_version_takes_over_from_a_running_process() {
    let Some(next) = other_version("another_version_takes_over_from_a_running_process") else {
        return;
    };
    let lab = cut::lab();
    let config = lab.dir().join("signalbox.yaml");
    there_and_back(&lab, next, |sb| {
        let new = Signalbox::spawn_file(&lab, "successor", &config, &["--takeover"]);
        // Verifying the programs takes a while on a busy machine.
        assert_eq!(sb.proc.exit_code(4 * SOON), 0, "{}\n{}", sb.proc.log(), new.proc.log());
        *sb = new;
    });
}

#[test]
fn a_start_beside_another_version_logs_it_and_costs_no_flow() {
    let Some(next) = other_version("a_start_beside_another_version_logs_it_and_costs_no_flow") else {
        return;
    };
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, sb) = cut::start(&lab, "");
    let (client, host) = doors()[0].enter_cut(&lab, &sb, &hosts);
    lab.set_program(next);
    // A separate socket and ports: only the flows are in the way.
    let body = cut::body("")
        .replace("10.1.0.1", "10.1.0.77")
        .replace("fd00:1::1", "fd00:1::77");
    let config = lab.dir().join("beside.yaml");
    let admin = format!(
        "version: 1\nadmin: {{ listen: \"127.0.0.1:8090\", socket: {} }}\n",
        lab.dir().join("beside.sock").display()
    );
    std::fs::write(&config, admin + &body).unwrap();
    let beside = Signalbox::spawn_file(&lab, "beside", &config, &["--steering", "bind"]);
    let said = eventually(SOON, || {
        beside
            .proc
            .log()
            .contains("of another version, uses /sys/fs/bpf/signalbox/")
    });
    assert!(said, "{}", beside.proc.log());
    ping(&client, &host);
    drop(beside);
    cut::expect_cut(&sb, &client);
    finish(&client, &host);
    expect_none(&sb);
}

#[test]
fn flows_that_cannot_be_read_end_and_new_ones_are_served() {
    let Some(next) = other_version("flows_that_cannot_be_read_end_and_new_ones_are_served") else {
        return;
    };
    let lab = cut::lab();
    let hosts = Hosts::start(&lab);
    let (_health, mut sb) = cut::start(&lab, "");
    let (client, host) = doors()[0].enter_cut(&lab, &sb, &hosts);
    let ours = cut::pins(&lab);
    sb.kill9();
    std::fs::remove_file(ours[0].join("LAYOUT")).unwrap();
    lab.set_program(next);
    let sb = Signalbox::start_file(&lab, "another", &lab.dir().join("signalbox.yaml"), &[]);
    let said = eventually(SOON, || sb.proc.log().contains("cannot be read, and end."));
    assert!(said, "{}", sb.proc.log());
    assert!(eventually(SOON, || versions(&lab).len() == 1), "{:?}", versions(&lab));
    sb.wait_healthy(&["east-1", "west-1"]);
    let (new, its_host) = doors()[0].enter_cut(&lab, &sb, &hosts);
    ping(&new, &its_host);
    finish(&new, &its_host);
    expect_none(&sb);
    drop((client, host));
}

/// Connections of a service, by TC or XDP, through a change of version and back.
fn service_there_and_back(lab: Lab, next: PathBuf, hook: &str) {
    let _hosts = ["east-1", "east-2"].map(|name| greeter(lab.host(name), "[::]:3306", name));
    let body = format!(
        r#"services:
  - {{ name: db, protocol: tcp, listen: ["10.1.0.1:3306", "[fd00:1::1]:3306"], cluster: east }}
layer4: {{ hook: {hook} }}
clusters:
  - name: east
    health: {{ tcp: {{ port: 3306 }}, interval: 1s, fast_interval: 300ms, timeout: 1s, rise: 1, fall: 2 }}
    hosts:
      - {{ name: east-1, address: 10.2.0.2 }}
      - {{ name: east-2, address: 10.2.0.3 }}
      - {{ name: east-1-v6, address: "fd00:2::2" }}
      - {{ name: east-2-v6, address: "fd00:2::3" }}
"#
    );
    let mut sb = Signalbox::start(&lab, &body);
    sb.wait_healthy(&["east-1", "east-2", "east-1-v6", "east-2-v6"]);
    let reach = |to: &str| -> TcpStream {
        let stream = lab.client.connect(to);
        assert!(greeting(&stream).starts_with("east-"));
        stream
    };
    let vips = ["10.1.0.1:3306", "[fd00:1::1]:3306"];
    let mut open: Vec<TcpStream> = vips
        .iter()
        .flat_map(|vip| (0..8).map(|_| reach(vip)).collect::<Vec<_>>())
        .collect();
    let config = lab.dir().join("signalbox.yaml");
    for program in [Some(next), None] {
        sb.kill9();
        lab.set_program(program.unwrap_or_else(|| lab::signalbox::binary().into()));
        sb = Signalbox::start_file(&lab, "another", &config, &[]);
        let alone = eventually(SOON, || versions(&lab).len() == 1);
        assert!(alone, "{:?}\n{}", versions(&lab), sb.proc.log());
        for stream in &open {
            echo(stream, &vec![b'x'; 50_000]).unwrap();
        }
        let flows = || sb.json("/api/v1/services")["services"][0]["flows"].as_u64().unwrap();
        assert!(
            eventually(SOON, || flows() == open.len() as u64),
            "{} of {}",
            flows(),
            open.len()
        );
        sb.wait_healthy(&["east-1", "east-2", "east-1-v6", "east-2-v6"]);
        open.extend(vips.map(reach));
    }
    drop(open);
}

#[test]
fn connections_of_services_are_carried_over_in_tc() {
    if let Some(next) = other_version("connections_of_services_are_carried_over_in_tc") {
        service_there_and_back(Lab::new(), next, "tc");
    }
}

#[test]
fn connections_of_services_are_carried_over_in_the_driver() {
    if let Some(next) = other_version("connections_of_services_are_carried_over_in_the_driver") {
        service_there_and_back(crate::l4::services::cabled(), next, "native");
    }
}
