//! Name servers of the tests, and clients that ask them.

use std::process::{Command, Output};

use crate::lab::{Lab, Ns, Proc, SOON, available, eventually, signalbox};

/// Zone of the tests.
pub(super) const ZONE: &str = "example.com";

const PROGRAMS: [(&str, &str); 5] = [
    ("named", "bind9"),
    ("named-checkzone", "bind9-utils"),
    ("dnsmasq", "dnsmasq-base"),
    ("dig", "bind9-dnsutils"),
    ("unshare", "util-linux"),
];

pub(super) fn has_programs(test: &str) -> bool {
    available(test, &PROGRAMS)
}

/// Runs signalbox with these words.
pub(super) fn run(words: &[&str]) -> Output {
    Command::new(signalbox::binary()).args(words).output().unwrap()
}

/// Standard output of a command that must have succeeded.
pub(super) fn must(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts that named would load a zone.
pub(super) fn zone_is_good(lab: &Lab, text: &str) {
    let path = lab.dir().join("checked.zone");
    std::fs::write(&path, text).unwrap();
    // As strict as named itself: a bad owner's name is more than a warning.
    let words = ["named-checkzone", "-k", "fail", "-n", "fail", "-W", "ignore", ZONE];
    let checked = lab.client.output(&[&words[..], &[path.to_str().unwrap()]].concat());
    assert!(checked.status.success(), "{checked:?}\n{text}");
}

/// A real named with the zone of the tests.
pub(super) struct Named {
    ns: Ns,
    _proc: Proc,
}

impl Named {
    /// Starts named, with further lines of the zone's declaration.
    pub(super) fn start(ns: &Ns, lab: &Lab, zone: &str, declared: &str) -> Self {
        let dir = lab.dir().join("named");
        std::fs::create_dir_all(&dir).unwrap();
        // An AppArmor profile for the program's own path would keep it from the files of the test.
        let program = dir.join("name-server");
        let installed = ["/usr/sbin/named", "/usr/local/sbin/named"];
        let installed = installed
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .unwrap();
        std::fs::copy(installed, &program).unwrap();
        std::fs::write(dir.join("db.zone"), zone).unwrap();
        let at = dir.display();
        let text = format!(
            "options {{ directory \"{at}\"; listen-on {{ any; }}; listen-on-v6 {{ any; }}; pid-file none;\n  \
             session-keyfile \"{at}/session.key\"; recursion no; dnssec-validation no; }};\ncontrols {{ }};\n\
             zone \"{ZONE}\" {{ type primary; file \"{at}/db.zone\"; {declared} }};\n"
        );
        std::fs::write(dir.join("named.conf"), text).unwrap();
        let mut command = ns.command(&program);
        command.args(["-g", "-n", "1", "-c"]).arg(dir.join("named.conf"));
        let proc = Proc::spawn("named", command, lab.dir()).ended_in_order();
        let named = Self {
            ns: ns.clone(),
            _proc: proc,
        };
        let dig = named.dig("127.0.0.1");
        let is_up = eventually(SOON, || dig.ask(&[ZONE, "SOA"]).contains("status: NOERROR"));
        assert!(is_up, "named does not answer");
        named
    }

    /// A client in the server's namespace that asks it.
    pub(super) fn dig(&self, server: &str) -> Dig<'_> {
        Dig {
            ns: &self.ns,
            server: server.to_owned(),
        }
    }
}

/// A real dnsmasq in the client's namespace, and a client that asks it.
pub(super) fn dnsmasq<'a>(lab: &'a Lab, lines: &str) -> (Proc, Dig<'a>) {
    let path = lab.dir().join("dnsmasq.conf");
    std::fs::write(&path, lines).unwrap();
    let path = format!("--conf-file={}", path.display());
    let checked = lab.client.output(&["dnsmasq", "--test", &path]);
    assert!(checked.status.success(), "{checked:?}\n{lines}");
    let mut command = lab.client.command("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--log-facility=-",
        "--user=root",
        "--pid-file=",
        "--no-hosts",
    ]);
    command.args(["--no-resolv", &path]);
    let proc = Proc::spawn("dnsmasq", command, lab.dir());
    let dig = Dig {
        ns: &lab.client,
        server: "127.0.0.1".to_owned(),
    };
    assert!(eventually(SOON, || dig
        .ask(&["app.example.com", "A"])
        .contains("status: NOERROR")));
    (proc, dig)
}

/// A client that asks a name server.
pub(super) struct Dig<'a> {
    ns: &'a Ns,
    server: String,
}

impl Dig<'_> {
    /// Answer to a question, with all of its sections; dig's error if the server is not there.
    pub(super) fn ask(&self, words: &[&str]) -> String {
        let at = format!("@{}", self.server);
        let output = self
            .ns
            .output(&[&["dig", "-r", &at, "+tries=2", "+time=5"], words].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Addresses of a name, sorted.
    pub(super) fn addresses(&self, name: &str, kind: &str) -> Vec<String> {
        let mut all = self.short(name, kind);
        all.sort();
        all
    }

    /// First IPv4 address of an answer.
    pub(super) fn first(&self, name: &str) -> String {
        self.short(name, "A").swap_remove(0)
    }

    fn short(&self, name: &str, kind: &str) -> Vec<String> {
        self.ask(&["+short", name, kind]).lines().map(str::to_owned).collect()
    }
}

/// Body that curl gets in the client's namespace, where the name server of the tests resolves names.
pub(super) fn curl_by_name(lab: &Lab, words: &[&str]) -> String {
    let resolver = lab.dir().join("resolv.conf");
    let server = "nameserver 127.0.0.1\noptions attempts:1 timeout:5\n";
    std::fs::write(&resolver, server).unwrap();
    // Only this process sees another file.
    let script = "mount --bind \"$1\" /etc/resolv.conf && shift && exec curl -sS --noproxy '*' --max-time 30 \"$@\"";
    let resolver = resolver.display().to_string();
    let shell = ["unshare", "--mount", "sh", "-c", script, "sh", &resolver];
    must(lab.client.output(&[&shell[..], words].concat()))
}
