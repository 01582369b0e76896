//! An ActiveMQ of our own: in a directory that is removed, on a port of loopback that was free.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::stomp::Client;
use crate::lab::{Proc, eventually};

const JAR: &str = "/usr/share/activemq/bin/activemq.jar";

/// A JVM on two busy cores.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// Whether there is an ActiveMQ here; where there must be one (`REQUIRE_PRIVILEGED_TESTS=1`), its lack is a failure.
pub(crate) fn available(test: &str) -> bool {
    let java = Command::new("java").arg("-version").output();
    let why = match java {
        _ if !Path::new(JAR).exists() => "no ActiveMQ here: apt-get install activemq",
        Ok(output) if output.status.success() => return true,
        _ => "no Java here: apt-get install activemq brings one",
    };
    let required = std::env::var("REQUIRE_PRIVILEGED_TESTS").is_ok_and(|v| v == "1");
    assert!(!required, "{test} cannot run: {why}");
    println!("SKIP {test}: {why}");
    false
}

/// A directory that goes with its test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sbx-activemq-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A broker. Its messages are on disk; it can be killed and started again.
pub(crate) struct ActiveMq {
    process: Option<Proc>,
    scratch: Scratch,
    pub(crate) port: u16,
}

impl ActiveMq {
    /// Starts a broker that every client may use.
    pub(crate) fn start() -> Self {
        Self::start_with(Scratch::new(), "", "stomp", "")
    }

    /// Starts a broker with more settings, and another transport.
    pub(crate) fn start_with(scratch: Scratch, settings: &str, transport: &str, options: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let home = scratch.path().display();
        // The broker's store outlives processes, not power: syncing every message would only cost time.
        // Acknowledgements that were not yet written when it is killed make it deliver again.
        let text = format!(
            r#"<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
  xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans-2.0.xsd
  http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" useJmx="false" brokerName="test" dataDirectory="{home}/data">
    <persistenceAdapter>
      <kahaDB directory="{home}/data/kahadb" journalDiskSyncStrategy="never"/>
    </persistenceAdapter>
    {settings}
    <transportConnectors>
      <transportConnector name="stomp" uri="{transport}://127.0.0.1:{port}{options}"/>
    </transportConnectors>
  </broker>
</beans>"#
        );
        std::fs::write(scratch.path().join("activemq.xml"), text).unwrap();
        let mut broker = Self {
            process: None,
            scratch,
            port,
        };
        broker.run();
        broker
    }

    /// Starts it, again, and waits until it listens.
    pub(crate) fn run(&mut self) {
        let home = self.scratch.path().display();
        let mut command = Command::new("java");
        // Started often and for seconds: with the least compilation, and garbage collection in one thread, it is ready
        // first.
        command.args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        command.args(
            [
                "home=/usr/share/activemq".to_owned(),
                format!("base={home}"),
                format!("conf={home}"),
                format!("data={home}/data"),
            ]
            .map(|set| format!("-Dactivemq.{set}")),
        );
        command.args(["-jar", JAR, "start", &format!("xbean:file:{home}/activemq.xml")]);
        self.process = Some(Proc::spawn("activemq", command, self.scratch.path()));
        let up = eventually(LONG, || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
        assert!(up, "ActiveMQ does not listen");
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }

    /// Stops it, or lets it continue.
    pub(crate) fn signal(&self, signal: Signal) {
        self.process.as_ref().unwrap().signal(signal);
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port)
    }

    /// Asserts that the broker has put nothing aside on its own: the first message there is the one that we put there
    /// now.
    pub(crate) fn assert_nothing_dead(&self) {
        let mut client = self.client();
        client.publish("/queue/ActiveMQ.DLQ", &["the first".to_owned()]);
        assert_eq!(client.first("/queue/ActiveMQ.DLQ"), "the first");
    }
}
