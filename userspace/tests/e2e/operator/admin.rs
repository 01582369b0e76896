//! The admin port under many connections, and a socket's path that belongs to another program.

use crate::lab;

use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lab::namespace::connect_here;
use lab::signalbox::write_config;
use lab::tiers::ping;
use lab::{Lab, SOON, Signalbox, config, eventually, lab_test, servers};

const ADMIN: &str = "127.0.0.1:8089";

/// More than the process may have descriptors.
const CROWD: usize = 1100;

#[lab_test]
fn a_crowd_at_the_admin_port_is_counted_and_costs_no_traffic() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let (_server, hosts) = servers::hand_over(lab.host("east-1"), "[::]:3306");
    // Tier copy: each connection takes two descriptors of this process.
    let body = config::tcp("datapath: { tier: copy }", &["east-1"]);
    let sb = Signalbox::start_under(&lab, &body, &["prlimit", "--nofile=1024:1024"]);
    sb.wait_healthy(&["east-1"]);

    let crowd: Vec<TcpStream> = lab.lb.run(|| {
        let says = [
            "",
            "GET /metrics HTTP/1.1\r\nHo",
            "POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
        ];
        let one = |n: usize| {
            let mut stream = connect_here(ADMIN).unwrap();
            // The server may have closed a refused connection already: an error is ignored.
            let _ = stream.write_all(says[n % 3].as_bytes());
            stream
        };
        (0..CROWD).map(one).collect()
    });
    let mut flows = Vec::new();
    for _ in 0..100 {
        let client = lab.client.connect("10.1.0.1:3306");
        let host = hosts.recv_timeout(SOON).expect("traffic is not served");
        ping(&client, &host);
        flows.push((client, host));
    }
    // The owner still gets in.
    assert_eq!(sb.unix("GET", "/livez", "").status, 200);
    // Together with the connections still open: the crowd times out on its own.
    let answers = || sb.try_get("/livez").is_ok_and(|response| response.status == 200);
    assert!(eventually(4 * SOON, answers), "the crowd is never closed");
    let refused = |limit: &str| sb.metric(&format!("signalbox_admin_refused_total{{limit=\"{limit}\"}}"));
    assert!(
        refused("max_per_source") >= (CROWD / 2) as f64,
        "{}",
        sb.get("/metrics").1
    );
    assert!(refused("head_timeout") > 0.0, "{}", sb.get("/metrics").1);
    drop(crowd);
}

#[lab_test]
fn an_event_stream_outlives_the_time_limits() {
    let lab = Lab::new();
    let body = config::tcp("", &["east-1"]);
    let sb = Signalbox::start(&lab, &body);
    let mut stream = lab.lb.connect(ADMIN);
    stream
        .write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let open = || sb.metric("signalbox_admin_connections{socket=\"tcp\"}");
    // The scrape's own connection, and the stream.
    assert!(eventually(SOON, || open() == 2.0));
    // Longer than a request's head, an idle connection or a body may take.
    std::thread::sleep(Duration::from_secs(35));
    sb.reload(&body);
    let mut text = String::new();
    let told = eventually(SOON, || {
        let mut bytes = [0; 4096];
        let n = std::io::Read::read(&mut stream, &mut bytes).unwrap();
        assert!(n > 0, "the stream has ended: {text}");
        text += &String::from_utf8_lossy(&bytes[..n]);
        text.contains("event: configuration")
    });
    assert!(told, "{text}");
}

#[lab_test]
fn a_file_at_the_admin_socket_path_stays_and_the_start_says_so() {
    let lab = Lab::new();
    let config = write_config(&lab, "signalbox.yaml", &config::tcp("", &["east-1"]));
    let path = lab.dir().join("admin.sock");
    std::fs::write(&path, "precious").unwrap();
    let mut sb = Signalbox::spawn_file(&lab, "refused", &config, &[]);
    assert_ne!(sb.proc.exit_code(SOON), 0);
    let said = sb.proc.log();
    assert!(
        said.contains("is a file, not a socket") && said.contains("set admin.socket"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[lab_test]
fn both_admin_sockets_are_open_once_the_admin_port_answers() {
    let lab = Lab::new();
    let config = write_config(&lab, "signalbox.yaml", &config::tcp("", &["east-1"]));
    for start in 0..8 {
        let sb = Signalbox::spawn_file(&lab, "started", &config, &[]);
        let began = Instant::now();
        // Without a pause: the moment between the two is short.
        while sb.try_get("/healthz").is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "{}", sb.proc.log());
        }
        let sockets = ["admin.sock", "admin.sock.takeover"].map(|name| lab.dir().join(name));
        let missing = sockets.iter().find(|path| UnixStream::connect(path).is_err());
        assert!(missing.is_none(), "start {start}: {missing:?}");
    }
}

#[lab_test]
fn log_fields_status_and_metrics_are_plain_for_operators() {
    let lab = Lab::new();
    let _health = servers::healthy(lab.host("east-1"));
    let web = "  - { name: web, protocol: http, listen: [\"10.1.0.1:80\"] }\nclusters:";
    let sb = Signalbox::start(&lab, &config::tcp("", &["east-1"]).replacen("clusters:", web, 1));
    sb.wait_healthy(&["east-1"]);
    let (_, metrics) = sb.get("/metrics");
    let times = || {
        metrics
            .lines()
            .filter(|line| line.starts_with("signalbox_peek_duration_seconds"))
    };
    let peeks = |listener: &str| times().any(|line| line.contains(&format!("listener=\"{listener}\"")));
    assert!(peeks("web") && !peeks("mysql"), "{metrics}");

    let out = sb.cli(&["rotate", "out", "east-1", "--force"]);
    assert!(out.status.success(), "{out:?}");
    let log = sb.proc.log();
    for field in [
        "\"hosts_added\":1",
        "\"action\":\"out\"",
        "\"subjects\":\"host:east/east-1\"",
    ] {
        assert!(log.contains(field), "{field}: {log}");
    }
    assert!(!log.contains("Applied {"), "{log}");

    let status = String::from_utf8(sb.cli(&["status"]).stdout).unwrap();
    let line = status.lines().find(|line| line.trim_start().starts_with("last_reload"));
    let line = line.unwrap_or_default();
    assert!(line.contains("ok, by ") && line.contains(" ago)"), "{status}");
}

#[lab_test]
fn the_configuration_in_force_is_shown_without_secrets() {
    let lab = Lab::new();
    let route = "routes:\n  - host: a.test\n    clusters: { east: 1, west: 2 }\n    headers: { request: { set: { \
                 Authorization: \"Basic c2VjcmV0\", X-Team: blue } } }\n";
    let listener = "listeners:\n  - { name: web, protocol: http, routing: request, listen: [\"10.1.0.1:80\"] }\n";
    let body = format!(
        "{listener}clusters:\n{}{}{route}",
        config::cluster("east", &[], &["east-1"]),
        config::cluster("west", &[], &["west-1"]),
    );
    let sb = Signalbox::start(&lab, &body);
    let shown = |words: &[&str]| {
        let output = sb.cli(&[&["config", "show"], words].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let yaml = shown(&[]);
    for part in [
        "host: a.test",
        "set Authorization: ***",
        "set X-Team: blue",
        "drain: 2m",
    ] {
        assert!(yaml.contains(part), "{part}: {yaml}");
    }
    assert!(!yaml.contains("c2VjcmV0"), "{yaml}");
    let weights = || {
        let json: serde_json::Value = serde_json::from_str(&shown(&["-o", "json"])).unwrap();
        json["config"]["routes"][0]["clusters"].clone()
    };
    assert_eq!(weights(), serde_json::json!({ "east": 1, "west": 2 }));
    assert!(sb.cli(&["weight", "a.test", "west=7"]).status.success());
    assert_eq!(weights()["west"], 7, "a change at run time is shown");
}

/// As of `signalbox completions bash | head -1`.
#[test]
fn output_that_nobody_reads_ends_a_command_without_a_word() {
    let mut command = std::process::Command::new(lab::signalbox::binary());
    command.args(["completions", "bash"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(141));
}

/// Files that a balancer would start without, and that deny no client or accept no change.
#[test]
fn check_misses_files_of_the_shield_and_of_the_admin_api() {
    let dir = std::env::temp_dir().join(format!("signalbox-check-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (config, token) = (dir.join("signalbox.yaml"), dir.join("token"));
    let text = format!(
        "version: 1\nadmin: {{ token_file: {} }}\nshield: {{ deny_files: [/nonexistent/deny.txt] }}\n\
         listeners: [{{ name: web, protocol: http, listen: [\"10.1.0.1:80\"] }}]\nclusters: []\n",
        token.display()
    );
    std::fs::write(&config, &text).unwrap();
    let check = |config: &std::path::Path| {
        let mut command = std::process::Command::new(lab::signalbox::binary());
        let output = command.args(["check", "--config"]).arg(config).output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, said) = check(&config);
    assert_eq!(code, Some(2), "{said}");
    for part in [
        ":3:24: shield.deny_files[0]: /nonexistent/deny.txt is not there".to_owned(),
        format!(":2:22: admin.token_file: {} is not there", token.display()),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    std::fs::write(&token, "secret").unwrap();
    std::fs::write(
        &config,
        text.replace("/nonexistent/deny.txt", &token.display().to_string()),
    )
    .unwrap();
    let (code, said) = check(&config);
    assert_eq!(code, Some(0), "{said}");

    // The file may be the only argument, or come by standard input.
    let path = config.display().to_string();
    for (word, name) in [(path.as_str(), path.as_str()), ("-", "standard input")] {
        let mut command = std::process::Command::new(lab::signalbox::binary());
        command
            .args(["check", word])
            .stdin(std::fs::File::open(&config).unwrap());
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{name}: ok\n"));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
