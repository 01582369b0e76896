//! A real MariaDB on a host, and real clients of it that hold their sessions.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use crate::lab::{Lab, Ns, Proc, SOON, eventually};

/// Programs, and their Debian packages: neither package starts a service.
pub(crate) const PROGRAMS: [(&str, &str); 2] =
    [("mariadbd", "mariadb-server-core"), ("mariadb", "mariadb-client-core")];

/// A server with a number that identifies it. Data survive a kill; a test may start it again.
pub(crate) fn server(lab: &Lab, host: &str, number: u32) -> Proc {
    server_in(lab.host(host), lab.dir(), host, number)
}

/// A server in a namespace, with its files in a directory.
pub(crate) fn server_in(ns: &Ns, dir: &Path, host: &str, number: u32) -> Proc {
    let data = dir.join(format!("{host}-data"));
    std::fs::create_dir_all(&data).unwrap();
    let mut command = ns.command("mariadbd");
    // An empty directory will do: without grants the server needs no system tables. Checks connect and say nothing: if
    // the server looked up names, it would shut the balancer out after a hundred of them.
    command.args([
        "--no-defaults",
        "--user=root",
        "--skip-grant-tables",
        "--skip-name-resolve",
    ]);
    command.args(["--bind-address=*", "--port=3306", "--innodb-buffer-pool-size=8M"]);
    command.args(["--innodb-log-file-size=4M", "--innodb-flush-log-at-trx-commit=2"]);
    command.arg(format!("--server-id={number}"));
    for (option, file) in [("datadir", ""), ("socket", "socket"), ("pid-file", "pid")] {
        command.arg(format!("--{option}={}", data.join(file).display()));
    }
    let server = Proc::spawn(&format!("{host}-mariadbd"), command, dir);
    let up = || once(ns, "127.0.0.1", "select 1").is_some();
    assert!(eventually(SOON, up), "{}", server.log());
    server
}

/// Runs a statement on a separate connection; `None` where it fails.
pub(crate) fn once(ns: &Ns, to: &str, sql: &str) -> Option<String> {
    let output = client(ns, to).args(["--execute", sql]).output().unwrap();
    let answer = String::from_utf8(output.stdout).unwrap();
    output.status.success().then(|| answer.trim_end().to_owned())
}

fn client(ns: &Ns, to: &str) -> Command {
    let mut command = ns.command("mariadb");
    // A client that reconnects automatically would hide that it was cut.
    command.args([
        "--no-defaults",
        "--skip-reconnect",
        "--skip-column-names",
        "--unbuffered",
    ]);
    command.args(["--batch", "--connect-timeout=10", "--port=3306", "--host", to]);
    command
}

/// A client that stays connected.
pub(crate) struct Session {
    child: Child,
    answers: Receiver<String>,
    errors: PathBuf,
}

impl Session {
    /// Connects.
    pub(crate) fn open(lab: &Lab, to: &str) -> Self {
        Self::open_in(&lab.client, lab.dir(), to)
    }

    /// Connects from a namespace; the client's errors go into a file of a directory.
    pub(crate) fn open_in(ns: &Ns, dir: &Path, to: &str) -> Self {
        thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
        let errors = dir.join(format!("session-{}.log", NUMBER.replace(NUMBER.get() + 1)));
        let mut child = client(ns, to)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let (sender, answers) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, answers, errors }
    }

    /// A statement that answers with one line; or the client's message when it gave up.
    pub(crate) fn ask(&mut self, sql: &str) -> Result<String, String> {
        let stdin = self.child.stdin.as_mut().unwrap();
        // A client that has stopped reads no more; then there is no answer either.
        let _ = stdin.write_all(format!("{sql};\n").as_bytes());
        let errors = |_| std::fs::read_to_string(&self.errors).unwrap();
        self.answers.recv_timeout(SOON).map_err(errors)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
