//! A network namespace: commands, closures and sockets inside it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use socket2::{Domain, Protocol, Socket, Type};

/// A namespace by its name under `/run/netns`. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Ns {
    name: Arc<str>,
    handle: Arc<File>,
}

impl Ns {
    /// Makes it.
    pub(crate) fn create(name: &str) -> Self {
        ip(&["netns", "add", name]);
        let handle = File::open(format!("/run/netns/{name}")).unwrap();
        Self {
            name: name.into(),
            handle: Arc::new(handle),
        }
    }

    /// The name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a thread inside the namespace. The sockets it opens stay in the namespace wherever they are used.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&*self.handle, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that will run inside. Only the network is another (`nsenter`, not `ip netns exec`, which would also
    /// unmount /sys and with it the bpf file system that a takeover hands over). The child has the command's own pid.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg("--")
            .arg(program);
        command
    }

    /// Runs a command to its end.
    pub(crate) fn output(&self, words: &[&str]) -> Output {
        self.command(words[0]).args(&words[1..]).output().unwrap()
    }

    /// Runs a command that must succeed; its standard output.
    pub(crate) fn must(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{words:?} in {}: {}\n{}{}",
            self.name,
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Connects from inside.
    pub(crate) fn connect(&self, to: &str) -> TcpStream {
        self.try_connect(to)
            .unwrap_or_else(|e| panic!("connect to {to} from {}: {e}", self.name))
    }

    /// Connects from inside, or says why not.
    pub(crate) fn try_connect(&self, to: &str) -> std::io::Result<TcpStream> {
        self.run(|| connect_here(to))
    }

    /// Connects from one of the namespace's several addresses.
    pub(crate) fn connect_from(&self, from: &str, to: &str) -> TcpStream {
        let (from, to): (SocketAddr, SocketAddr) = (format!("{from}:0").parse().unwrap(), to.parse().unwrap());
        self.run(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.bind(&from.into()).unwrap();
            socket.connect(&to.into()).unwrap();
            let stream = TcpStream::from(socket);
            guard(&stream);
            stream
        })
    }

    /// Listens inside.
    pub(crate) fn listen(&self, at: &str) -> TcpListener {
        let at: SocketAddr = at.parse().unwrap();
        self.run(|| {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP)).unwrap();
            socket.set_reuse_address(true).unwrap();
            if at.is_ipv6() {
                socket.set_only_v6(false).unwrap();
            }
            socket
                .bind(&at.into())
                .unwrap_or_else(|e| panic!("bind {at} in {}: {e}", self.name));
            socket.listen(4096).unwrap();
            socket.into()
        })
    }
}

/// Connects from the namespace this thread is in; for closures given to [`Ns::run`] that connect many times.
pub(crate) fn connect_here(to: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_secs(10))?;
    guard(&stream);
    Ok(stream)
}

/// No test hangs for ever on a peer that says nothing.
fn guard(stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
}

/// Runs `ip`, which must succeed.
pub(crate) fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {}: {why}", words.join(" "));
}
