//! `signalbox demo`: two clusters of two small servers each behind a balancer, all in one process on loopback.

mod host;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;

use crate::app::{self, Options, SteeringChoice};

use crate::{admin, cli, config, sys};

/// Arguments of `signalbox demo`.
#[derive(clap::Args)]
pub struct DemoArgs {
    /// Port for HTTP.
    #[arg(long, default_value_t = 8080)]
    pub http_port: u16,
    /// Port for HTTPS.
    #[arg(long, default_value_t = 8443)]
    pub https_port: u16,
    /// Port for the admin API.
    #[arg(long, default_value_t = 8089)]
    pub admin_port: u16,
    /// Stop after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Show the log.
    #[arg(short, long)]
    pub verbose: bool,
}

/// Filter of the log: the demo removes its directory while it is still watched, which would make `notify` warn.
pub const LOG: &str = "warn,notify=error";

/// File with the token for changes over TCP, and the token.
const TOKEN_FILE: &str = "token";
const TOKEN: &str = "only-for-this-demo";
/// File of the certificate for the name whose TLS ends at the balancer.
const CERTIFICATE: &str = "edge.pem";

/// The demo's configuration, as a user would write it.
fn configuration(args: &DemoArgs, socket: &std::path::Path, hosts: &[(String, SocketAddr, SocketAddr)]) -> String {
    let host = |at: usize| {
        let (name, http, https) = &hosts[at];
        format!(
            "{{ name: {name}, address: 127.0.0.1, http: {}, https: {} }}",
            http.port(),
            https.port()
        )
    };
    let health = "health: { http: { path: /healthz }, interval: 1s, timeout: 500ms, rise: 1, fall: 1 }";
    let store = socket.with_file_name("state.redb");
    let certificate = socket.with_file_name(CERTIFICATE);
    let token = socket.with_file_name(TOKEN_FILE);
    format!(
        "version: 1
admin: {{ listen: \"127.0.0.1:{admin}\", socket: {socket:?}, token_file: {token:?} }}
store: {{ path: {store:?} }}
listeners:
  - {{ name: http, protocol: http, listen: [\"127.0.0.1:{http}\"] }}
  - {{ name: https, protocol: https, listen: [\"127.0.0.1:{https}\"] }}
certificates: [{{ cert: {certificate:?} }}]
clusters:
  - {{ name: blue, {health}, hosts: [{b1}, {b2}] }}
  - {{ name: green, {health}, hosts: [{g1}, {g2}] }}
routes:
  - {{ host: app.localhost, clusters: {{ blue: 90, green: 10 }} }}
  - {{ host: edge.localhost, clusters: {{ blue: 90, green: 10 }}, tls: {{ termination: edge }} }}
",
        admin = args.admin_port,
        http = args.http_port,
        https = args.https_port,
        b1 = host(0),
        b2 = host(1),
        g1 = host(2),
        g2 = host(3),
    )
}

/// Runs the demo until Ctrl-C.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let hosts = host::start(&["blue-1", "blue-2", "green-1", "green-2"])
        .await
        .context("starting the demo's servers")?;
    let directory = std::env::temp_dir().join(format!("signalbox-demo-{}", std::process::id()));
    // Other users cannot read the key or use the socket. The token is no secret.
    sys::private_directory(&directory).with_context(|| format!("creating {}", directory.display()))?;
    let outcome = serve(args, &hosts, &directory).await;
    let _ = std::fs::remove_dir_all(&directory);
    outcome
}

/// Runs the balancer, with files in `directory`.
async fn serve(
    args: DemoArgs,
    hosts: &[(String, SocketAddr, SocketAddr)],
    directory: &std::path::Path,
) -> anyhow::Result<()> {
    let socket = directory.join("admin.sock");
    let made = rcgen::generate_simple_self_signed(vec!["edge.localhost".to_owned()])?;
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    sys::write_private(directory, CERTIFICATE, pem.as_bytes())?;
    sys::write_private(directory, TOKEN_FILE, TOKEN.as_bytes())?;
    let text = configuration(&args, &socket, hosts);
    let model = config::parse(&text)
        .map_err(|errors| anyhow::anyhow!("{errors}"))?
        .model;
    let options = Options {
        model,
        file: None,
        steering: SteeringChoice::Auto,
        workers: cli::default_workers(),
        takeover: false,
        kept: None,
        successor: None,
    };
    let running = app::start(options)
        .await
        .context("--http-port, --https-port and --admin-port choose other ports")?;
    let control = running.control.clone();
    println!("{}", welcome_text(&args, &socket));
    let seconds = args.seconds;
    tokio::spawn(watch(control));
    if let Some(seconds) = seconds {
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGTERM);
        });
    }
    running.run().await
}

fn welcome_text(args: &DemoArgs, socket: &std::path::Path) -> String {
    let socket = socket.display();
    let program = std::env::current_exe().map_or_else(|_| "signalbox".into(), |path| path.display().to_string());
    format!(
        "Two clusters, blue and green, of two hosts each; app.localhost goes to blue : green = 90 : 10.

Watch it in a browser: http://127.0.0.1:{admin}/ui/ (token for rotation and migration: {TOKEN})

In another terminal, try:

  curl --resolve app.localhost:{http}:127.0.0.1 http://app.localhost:{http}/
  curl --resolve app.localhost:{https}:127.0.0.1 -k https://app.localhost:{https}/
  curl --resolve edge.localhost:{https}:127.0.0.1 -k https://edge.localhost:{https}/
  {program} weight --socket {socket} app.localhost blue=1 green=1
  {program} top --socket {socket}

The second's TLS ends at the host, the third's at the balancer, which chooses a host for each request. The fourth shifts
the weights: repeat the first, and watch the table. Metrics: http://127.0.0.1:{admin}/metrics. Ctrl-C ends.
",
        http = args.http_port,
        https = args.https_port,
        admin = args.admin_port,
    )
}

/// Shows routes and hosts: redrawn each second on a terminal, otherwise printed when they change.
async fn watch(control: crate::control::Control) {
    let terminal = std::io::stdout().is_terminal();
    let (mut lines, mut before) = (0, String::new());
    loop {
        let routes = admin::views::routes(&control, None).routes;
        let text = signalbox_cli::routes_and_hosts(&routes, &admin::views::hosts(&control).hosts);
        let shown = if terminal {
            let up = if lines > 0 {
                format!("\x1b[{lines}A\x1b[J")
            } else {
                String::new()
            };
            lines = text.lines().count();
            format!("{up}{text}")
        } else if text != before {
            format!("{text}\n")
        } else {
            String::new()
        };
        // Errors are ignored: a closed output is no reason to end the demo.
        let _ = std::io::stdout()
            .write_all(shown.as_bytes())
            .and_then(|()| std::io::stdout().flush());
        before = text;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
