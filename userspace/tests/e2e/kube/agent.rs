//! Clusters that are watched: by the balancer itself, and by an agent inside the cluster; an application moves from one
//! to the other while it is used.

use crate::kube_api;
use crate::lab;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use kube_api::Api;
use kube_api::objects::{route, router};
use lab::namespace::Ns;
use lab::topology::HOSTS;
use lab::{Proc, Router, SOON, Signalbox, config, cut, eventually, http, lab_test, signalbox};
use serde_json::{Value, json};

const HTTP: &str = "10.1.0.1:80";
const TOKEN: &str = "a-token-for-the-lab-0123";

pub(crate) fn address(name: &str) -> &'static str {
    HOSTS.iter().find(|(host, ..)| *host == name).unwrap().1
}

/// Order of a test to an API server that runs on a separate thread.
enum Order {
    Kill,
    Restart,
}

/// An API server in a namespace: on its loopback.
pub(crate) struct Cluster {
    pub(crate) api: Api,
    orders: tokio::sync::mpsc::UnboundedSender<Order>,
    done: mpsc::Receiver<()>,
}

impl Cluster {
    pub(crate) fn start(ns: &Ns) -> Self {
        let (send, receive) = mpsc::channel();
        let (orders, mut inbox) = tokio::sync::mpsc::unbounded_channel();
        let (tell, done) = mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (api, server) = Api::start().await;
                send.send(api.clone()).unwrap();
                let mut server = Some(server);
                while let Some(order) = inbox.recv().await {
                    match order {
                        Order::Kill => server.take().unwrap().kill().await,
                        Order::Restart => server = Some(api.restart().await),
                    }
                    tell.send(()).unwrap();
                }
            });
        };
        // A thread keeps the namespace in which it was made.
        ns.run(|| std::thread::spawn(serve));
        Self {
            api: receive.recv().unwrap(),
            orders,
            done,
        }
    }

    fn obey(&self, order: Order) {
        assert!(self.orders.send(order).is_ok());
        self.done.recv().unwrap();
    }

    pub(crate) fn put_routers(&self, hosts: &[&str]) {
        for host in hosts {
            let pod = router(&format!("router-{host}"), host, address(host), true);
            self.api.change(|store| store.put("pods", pod));
        }
    }

    fn put_route(&self, host: &str, weight: u32) {
        let mut object = route(1, "shop/web", host);
        object["metadata"]["annotations"] = json!({ "signalbox.io/weight": weight.to_string() });
        self.api.change(|store| store.put("routes", object));
    }
}

fn shares(sb: &Signalbox, host: &str) -> Value {
    let routes = sb.json("/api/v1/routes");
    let route = signalbox::find(&routes["routes"], "host", host);
    let shares = route["clusters"].as_array().cloned().unwrap_or_default();
    json!(
        shares
            .iter()
            .map(|s| json!([s["name"], s["weight"]]))
            .collect::<Vec<_>>()
    )
}

fn source(sb: &Signalbox, name: &str) -> Value {
    signalbox::find(&sb.json("/api/v1/sources")["sources"], "name", name)
}

#[lab_test]
fn an_app_moves_to_a_cluster_with_an_agent_and_no_call_fails() {
    let lab = cut::lab();
    let mut routers = Router::start_all(&lab, &["east-1", "east-2", "west-2"]);
    // The balancer reaches the API server of east; west's only its own agent does.
    let (east, west) = (Cluster::start(&lab.lb), Cluster::start(lab.host("west-2")));
    east.put_routers(&["east-1", "east-2"]);
    east.put_route("app.example.com", 100);
    west.put_routers(&["west-2"]);

    let token = lab.dir().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let health = config::FAST_HEALTH;
    let text = format!(
        "{}clusters:\n  - {{ name: east, {health}, kubernetes: {{ url: \"http://{}\" }} }}\n  - {{ name: west, {health}, learn: true }}\n",
        config::WEB_LISTENERS,
        east.api.addr
    );
    let path = signalbox::write_config(&lab, "kube.yaml", &text);
    let listen = format!("admin: {{ read: open, token_file: {},", token.display());
    let whole = std::fs::read_to_string(&path)
        .unwrap()
        .replace("admin: {", &listen)
        .replace("127.0.0.1:8089", "0.0.0.0:8089");
    std::fs::write(&path, whole).unwrap();
    let mut sb = Signalbox::start_file(&lab, "signalbox", &path, &[]);
    sb.wait_healthy(&["east-1", "east-2"]);
    assert!(eventually(SOON, || shares(&sb, "app.example.com") == json!([["east", 100]])));
    assert_eq!(http::ask(&lab, HTTP, "app.example.com").status, 200);

    let agent = lab.dir().join("agent.yaml");
    let text = format!(
        "version: 1\ncluster: west\nkubernetes: {{ url: \"http://{}\" }}\nbalancers:\n  \
         - {{ url: \"http://10.3.0.1:8089\", token_file: {token} }}\n  - {{ url: \"http://10.3.0.99:8089\", token_file: {token} }}\n",
        west.api.addr,
        token = token.display()
    );
    std::fs::write(&agent, text).unwrap();
    let spawn_agent = || {
        let mut command = lab.host("west-2").command(crate::lab::signalbox::binary());
        command.arg("agent").arg("-f").arg(&agent);
        Proc::spawn("agent", command, lab.dir())
    };
    let mut agent = spawn_agent();
    assert!(
        eventually(SOON, || sb.host("west-2")["health"] == "healthy"),
        "{}",
        agent.log()
    );
    // One of two balancers does not answer, which delays no other.
    assert!(
        eventually(Duration::from_secs(40), || agent
            .log()
            .contains("10.3.0.99:8089 does not answer")),
        "{}",
        agent.log()
    );

    let stop = AtomicBool::new(false);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let callers = [(), ()].map(|()| {
            scope.spawn(|| {
                lab.client.run(|| {
                    let mut failures = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        failures.extend(http::ask_here(HTTP, "app.example.com").err());
                    }
                    failures
                })
            })
        });
        // TLS is not terminated on the way: the router hosts' own certificates count.
        let by_tls = scope.spawn(|| {
            let mut failures = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                let answer = http::curl(&lab, "10.1.0.1", &["https://app.example.com/"]);
                if answer.code != 0 {
                    failures.push(format!("TLS: {}", answer.trace));
                }
            }
            failures
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (old, new) in [(99, 1), (50, 50), (1, 99)] {
                east.put_route("app.example.com", old);
                west.put_route("app.example.com", new);
                let wanted = json!([["west", new], ["east", old]]);
                assert!(
                    eventually(SOON, || shares(&sb, "app.example.com") == wanted),
                    "{}",
                    shares(&sb, "app.example.com")
                );
            }
            // The old cluster's API server dies: its last report stays, and shows its age.
            east.obey(Order::Kill);
            assert!(eventually(SOON, || source(&sb, "kube:east")["connected"] == false));
            assert_eq!(shares(&sb, "app.example.com"), json!([["west", 99], ["east", 1]]));
            // The agent dies and comes back, too.
            agent.kill();
            agent = spawn_agent();
            east.obey(Order::Restart);
            east.api.change(|store| store.delete("routes", "shop", "web"));
            assert!(eventually(Duration::from_secs(60), || shares(&sb, "app.example.com")
                == json!([["west", 99]])));
            // The kernel's tables follow what a source reports a moment later.
            let host = || http::ask(&lab, HTTP, "app.example.com").field("host");
            assert!(eventually(SOON, || (0..20).all(|_| host() == "west-2")));
            for router in &mut routers[..2] {
                router.kill();
            }
            std::thread::sleep(Duration::from_millis(300));
        }));
        stop.store(true, Ordering::SeqCst);
        let mut failures: Vec<String> = callers.into_iter().flat_map(|c| c.join().unwrap()).collect();
        failures.extend(by_tls.join().unwrap());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        failures
    });
    assert!(
        failures.is_empty(),
        "{} failed, the first: {}",
        failures.len(),
        failures[0]
    );

    // An agent that lives and sees nothing reports that.
    assert!(eventually(SOON, || source(&sb, "agent:west")["connected"] == true));
    west.obey(Order::Kill);
    let says = |part: &str| {
        source(&sb, "agent:west")["last_error"]
            .as_str()
            .is_some_and(|error| error.contains(part))
    };
    assert!(
        eventually(SOON, || source(&sb, "agent:west")["connected"] == false
            && says("the agent says: http://")),
        "{}",
        source(&sb, "agent:west")
    );
    let (_, verbose) = sb.get("/readyz?verbose");
    assert!(verbose.contains("[~] source agent:west: heard "), "{verbose}");
    west.obey(Order::Restart);

    // The servers are both dead when the balancer is killed: the next process has the knowledge of the last.
    assert!(eventually(SOON, || source(&sb, "agent:west")["connected"] == true));
    // Knowledge is on disk after five seconds, and its time after fifteen.
    std::thread::sleep(Duration::from_secs(16));
    east.obey(Order::Kill);
    agent.kill();
    sb.kill9();
    let sb = Signalbox::start_file(&lab, "signalbox", &path, &[]);
    sb.wait_healthy(&["west-2"]);
    assert_eq!(shares(&sb, "app.example.com"), json!([["west", 99]]));
    for name in ["kube:east", "agent:west"] {
        let age = || source(&sb, name)["seconds_since_heard"].as_f64();
        assert!(eventually(SOON, || age().is_some()), "{}", source(&sb, name));
        assert_eq!(source(&sb, name)["connected"], false);
    }
    assert_eq!(sb.host("east-1")["cluster"], "east", "{}", sb.json("/api/v1/hosts"));
    assert_eq!(http::ask(&lab, HTTP, "app.example.com").field("host"), "west-2");

    // A cluster that is not watched any more is forgotten.
    let without = std::fs::read_to_string(&path).unwrap();
    let (from, to) = (without.find("kubernetes:").unwrap(), without.find("} }\n").unwrap() + 1);
    std::fs::write(&path, format!("{}learn: true{}", &without[..from], &without[to..])).unwrap();
    assert_eq!(sb.unix("POST", "/api/v1/reload", "").status, 200);
    assert!(eventually(SOON, || sb.host("east-1").is_null()
        || sb.host("east-1")["draining"] == true));
    assert!(source(&sb, "kube:east").is_null());
}

#[lab_test]
fn readiness_waits_for_the_first_cluster_read_or_a_timeout() {
    let lab = cut::lab();
    let east = Cluster::start(&lab.lb);
    east.put_routers(&["east-1"]);
    east.put_route("app.example.com", 100);
    east.obey(Order::Kill);
    let body = |first_read: &str| {
        format!(
            "{}timeouts: {{ first_read: {first_read} }}\nclusters:\n  - {{ name: east, {}, kubernetes: {{ url: \"http://{}\" }} }}\n",
            config::WEB_LISTENERS,
            config::FAST_HEALTH,
            east.api.addr
        )
    };
    let ready = |sb: &Signalbox| sb.try_get("/readyz").is_ok_and(|answer| answer.status == 200);
    let refuses = |sb: &Signalbox| sb.try_get("/readyz").is_ok_and(|answer| answer.status == 503);
    let path = signalbox::write_config(&lab, "waits.yaml", &body("1h"));
    let mut sb = Signalbox::spawn_file(&lab, "waits", &path, &[]);
    assert!(eventually(SOON, || refuses(&sb)), "{}", sb.proc.log());
    assert!(
        eventually(SOON, || sb
            .get("/readyz?verbose")
            .1
            .contains("kube:east has not been read yet")),
        "{:?}",
        sb.get("/readyz?verbose")
    );
    assert!(
        sb.get("/readyz?verbose")
            .1
            .contains("[-] source kube:east: nothing is known of its cluster")
    );
    east.obey(Order::Restart);
    assert!(eventually(SOON, || ready(&sb)), "{:?}", sb.get("/readyz?verbose"));
    assert!(sb.get("/readyz?verbose").1.contains("[+] source kube:east: heard "));
    sb.term();
    let ended = sb.proc.wait_exit(SOON);
    assert!(ended.is_some_and(|status| status.success()), "{}", sb.proc.log());

    // Without the server and without a store it is ready when its time is over, and names what it does not know.
    east.obey(Order::Kill);
    let _ = std::fs::remove_file(lab.dir().join("state.redb"));
    let path = signalbox::write_config(&lab, "goes-on.yaml", &body("8s"));
    let sb = Signalbox::spawn_file(&lab, "goes-on", &path, &[]);
    assert!(eventually(SOON, || refuses(&sb)), "{}", sb.proc.log());
    assert!(eventually(SOON, || ready(&sb)), "{:?}", sb.get("/readyz?verbose"));
    let (_, verbose) = sb.get("/readyz?verbose");
    assert!(
        verbose.contains("[~] source kube:east: nothing is known of its cluster, never heard: http"),
        "{verbose}"
    );
}
