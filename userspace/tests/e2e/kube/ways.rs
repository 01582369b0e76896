//! Ways to an API server: kubeconfigs with token files, programs and proxies; connections that are kept alive.

use crate::kube::source::{Scratch, connected, fill};
use crate::kube_api;
use crate::lab::signalbox::binary;
use crate::lab::{SOON, eventually};

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kube_api::Api;
use kube_api::watching::{Watching, settings};
use serde_json::{Value, json};
use signalbox::source::kube::Settings;
use signalbox_core::model::kubernetes::ApiServerAccess;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

fn kubeconfig(cluster: &Value, user: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "c", "cluster": cluster }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
    })
    .to_string()
}

fn by(file: &Scratch, api: &Api) -> Settings {
    let mut settings = settings(api);
    settings.source.access = ApiServerAccess::Kubeconfig {
        path: file.0.clone(),
        context: None,
    };
    settings
}

#[tokio::test]
async fn a_token_file_may_end_with_a_newline() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.token = Some("right"));
    let token = Scratch::new("newline-token", "right\n");
    let server = json!({ "server": format!("http://{}", api.addr) });
    let file = Scratch::new("newline", &kubeconfig(&server, &json!({ "tokenFile": token.0 })));
    let mut watching = Watching::start(by(&file, &api));
    watching.settles(&api).await;
    watching.stands(connected).await;
}

#[tokio::test]
async fn a_program_that_hangs_is_given_up_and_the_next_one_asked() {
    let (api, _server) = Api::start().await;
    fill(&api);
    api.change(|store| store.moods.token = Some("given"));
    let server = json!({ "server": format!("http://{}", api.addr) });
    let program = |script: &str| {
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script],
            "interactiveMode": "Never",
        });
        kubeconfig(&server, &json!({ "exec": exec }))
    };
    let file = Scratch::new("program", &program("echo secret; exec sleep 1000"));
    let mut settings = by(&file, &api);
    settings.timings.program_timeout = Duration::from_secs(1);
    let mut watching = Watching::start(settings);
    let view = watching.stands(|view| view["last_error"].is_string()).await;
    let error = view["last_error"].as_str().unwrap();
    assert!(
        error.contains(r#"the program "/bin/sh""#) && error.contains("was killed"),
        "{error}"
    );
    assert!(!error.contains("secret"), "{error}");
    std::fs::write(
        &file.0,
        program(r#"echo '{"kind":"ExecCredential","status":{"token":"given"}}'"#),
    )
    .unwrap();
    watching.settles(&api).await;
    watching.stands(connected).await;
}

#[test]
fn a_program_that_hangs_does_not_keep_an_agent_from_stopping() {
    let mark = Scratch::new("program-mark", "");
    let script = format!("echo $$ > {}; exec sleep 1000", mark.0.display());
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", script],
        "interactiveMode": "Never",
    });
    let server = json!({ "server": "http://127.0.0.1:9" });
    let kubeconfig = Scratch::new("program-stop", &kubeconfig(&server, &json!({ "exec": exec })));
    let balancer = json!({ "url": "http://127.0.0.1:9", "token_file": mark.0 });
    let kubernetes = json!({ "kubeconfig": kubeconfig.0 });
    let agent =
        json!({ "version": 1, "cluster": "west", "kubernetes": kubernetes, "balancers": [balancer] }).to_string();
    let agent = Scratch::new("program-agent", &agent);
    let mut process = std::process::Command::new(binary())
        .args(["agent", "-f"])
        .arg(&agent.0)
        .spawn()
        .unwrap();
    let started = || std::fs::read_to_string(&mark.0).is_ok_and(|pid| pid.ends_with('\n'));
    assert!(eventually(SOON, started), "the program was not run");
    let pid = i32::try_from(process.id()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    let has_ended = eventually(SOON, || process.try_wait().unwrap().is_some());
    let _ = process.kill();
    let ended = process.wait().unwrap();
    assert!(has_ended && ended.success(), "{ended}");
    let program = std::fs::read_to_string(&mark.0).unwrap();
    let is_gone = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.trim()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    assert!(eventually(SOON, is_gone), "the program lives on");
}

/// A proxy that leads everywhere to one address, and counts its clients.
async fn proxy(to: SocketAddr, socks: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (addr, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            counter.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                if socks {
                    greet_by_socks(&mut socket).await?;
                } else {
                    greet_by_http(&mut socket).await?;
                }
                let mut server = TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut socket, &mut server).await
            });
        }
    });
    (addr, count)
}

async fn greet_by_http(socket: &mut TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("CONNECT api.invalid:6443 "), "{head}");
    // me:pass
    assert!(
        head.to_lowercase().contains("proxy-authorization: basic bwu6cgfzcw=="),
        "{head}"
    );
    socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await
}

/// RFC 1928, as far as a client without a password and with a name needs it.
async fn greet_by_socks(socket: &mut TcpStream) -> std::io::Result<()> {
    let mut hello = [0; 2];
    socket.read_exact(&mut hello).await?;
    let mut methods = vec![0; usize::from(hello[1])];
    socket.read_exact(&mut methods).await?;
    socket.write_all(&[5, 0]).await?;
    let mut request = [0; 5];
    socket.read_exact(&mut request).await?;
    assert_eq!(request[..4], [5, 1, 0, 3], "to connect to a name");
    let mut rest = vec![0; usize::from(request[4]) + 2];
    socket.read_exact(&mut rest).await?;
    assert!(rest.starts_with(b"api.invalid"));
    socket.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

#[tokio::test]
async fn a_kubeconfigs_proxy_is_used() {
    let (api, _server) = Api::start().await;
    fill(&api);
    for socks in [false, true] {
        let (addr, count) = proxy(api.addr, socks).await;
        let url = if socks {
            format!("socks5://{addr}")
        } else {
            format!("http://me:pass@{addr}")
        };
        let cluster = json!({ "server": "http://api.invalid:6443", "proxy-url": url });
        let file = Scratch::new("proxy", &kubeconfig(&cluster, &json!({})));
        let mut watching = Watching::start(by(&file, &api));
        watching.settles(&api).await;
        watching.stands(connected).await;
        assert!(count.load(Ordering::SeqCst) > 0);
    }
}

/// The kernel's own evidence: column `tr` of a connection is `02` while it waits for the next keep-alive probe.
#[tokio::test]
async fn connections_to_the_server_are_kept_alive() {
    let (api, _server) = Api::start().await;
    fill(&api);
    let mut watching = Watching::start(settings(&api));
    watching.settles(&api).await;
    watching.stands(connected).await;
    let to = format!("0100007F:{:04X}", api.addr.port());
    let is_kept = |_: &Value| {
        let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let mut ours = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Established, by us.
        ours.any(|columns| {
            // The timer is in hundredths of a second; the kernel's own default is two hours.
            let probe = columns[5]
                .strip_prefix("02:")
                .map(|when| u32::from_str_radix(when, 16).unwrap());
            columns[2] == to && columns[3] == "01" && probe.is_some_and(|when| when < 60_00)
        })
    };
    watching.stands(is_kept).await;
}
