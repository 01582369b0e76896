//! The samples of the blog by way of a topic with a durable subscription, with certificates in files.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use signalbox_core::discovered::spi::{AppChange, RoutingEvent, parse};
use signalbox_core::model::RoutingEvents;

use super::activemq::{ActiveMq, LONG, Scratch, available};
use super::consumer::{Consumer, certificates, runtime, settings};
use super::disk::Disk;
use super::naive::{naive, ruby};
use super::storm::{certificate, key};
use crate::kube_api::watching::view_of;
use crate::lab::eventually;

const TOPIC: &str = "/topic/routinginfo";
const SECRET: &str = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----";

const SAMPLES: [&str; 3] = [
    ":action: :create_application\n:app_name: phpha\n:namespace: demo\n:scalable: true\n:ha: false\n",
    ":action: :add_public_endpoint\n:app_name: phpha\n:namespace: demo\n:gear_id: 542b72abafec2de3aa000009\n\
     :public_port_name: haproxy-1.4\n:public_address: 172.16.4.200\n:public_port: 50847\n:protocols:\n- http\n- ws\n\
     :types:\n- load_balancer\n:mappings:\n- frontend: ''\n  backend: ''\n- frontend: /health\n  \
     backend: /configuration/health\n",
    ":action: :add_alias\n:app_name: phpha\n:namespace: demo\n:alias: foo.example.com\n",
];

#[test]
fn the_samples_come_through_a_topic_also_while_nobody_listens() {
    if !available("the_samples_come_through_a_topic_also_while_nobody_listens") {
        return;
    }
    let (broker, scratch, runtime, disk) = (ActiveMq::start(), Scratch::new(), runtime(), Arc::new(Disk::default()));
    let settings = RoutingEvents {
        client_id: Some("signalbox-1".into()),
        subscription: Some("routing".into()),
        certificates: certificates(&scratch),
        ..settings(&[broker.port], TOPIC)
    };
    let consumer = Consumer::start(&runtime, settings.clone(), &disk);
    let subscribed = eventually(LONG, || consumer.spi.status().connected());
    assert!(subscribed, "{}", view_of(consumer.spi.status()));
    let mut events: Vec<RoutingEvent> = SAMPLES.iter().flat_map(|text| parse(text).unwrap()).collect();
    broker.client().publish(TOPIC, &SAMPLES.map(str::to_owned));
    consumer.wait_for("phpha");

    consumer.kill(&runtime);
    let more = [
        certificate("phpha", "foo.example.com", SECRET),
        certificate("phpha", "bar.example.com", SECRET),
        end(),
    ];
    broker.client().publish(TOPIC, &more.each_ref().map(ruby));
    events.extend(more);
    let consumer = Consumer::start(&runtime, settings.clone(), &disk);
    consumer.wait_for("the-end");
    consumer.assert_is(&disk, &naive(&events), &settings);

    let directory = scratch.path().join("certificates/demo+phpha");
    let files = || {
        let mut names: Vec<String> = std::fs::read_dir(&directory).map_or_else(
            |_| Vec::new(),
            |entries| {
                entries
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect()
            },
        );
        names.sort();
        names
    };
    assert_eq!(
        files(),
        [
            "bar.example.com.crt",
            "bar.example.com.key",
            "foo.example.com.crt",
            "foo.example.com.key"
        ]
    );
    let file = directory.join("foo.example.com.key");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), SECRET);
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(directory.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let seen = format!(
        "{:?} {}",
        consumer.spi.applications(),
        serde_json::to_string(&consumer.spi.applications()).unwrap()
    );
    assert!(seen.contains("(hidden)") && !seen.contains("c2VjcmV0"), "{seen}");

    let alias = RoutingEvent {
        app: key("phpha"),
        change: AppChange::RemoveAlias("foo.example.com".into()),
    };
    runtime.block_on(consumer.spi.apply_text(&ruby(&alias))).unwrap();
    assert_eq!(files(), ["bar.example.com.crt", "bar.example.com.key"]);
    let gone = RoutingEvent {
        app: key("phpha"),
        change: AppChange::Delete,
    };
    runtime.block_on(consumer.spi.apply_text(&ruby(&gone))).unwrap();
    assert!(!directory.exists());
    broker.assert_nothing_dead();
}

fn end() -> RoutingEvent {
    RoutingEvent {
        app: key("the-end"),
        change: AppChange::Create {
            scalable: None,
            ha: None,
        },
    }
}

#[test]
fn a_message_with_an_unknown_key_is_set_aside_without_the_key() {
    if !available("a_message_with_an_unknown_key_is_set_aside_without_the_key") {
        return;
    }
    let (broker, runtime, disk) = (ActiveMq::start(), runtime(), Arc::new(Disk::default()));
    let settings = settings(&[broker.port], "/queue/routing");
    let consumer = Consumer::start(&runtime, settings.clone(), &disk);
    let bad = ruby(&certificate("phpha", "foo.example.com", SECRET)).replace(":namespace: demo\n", "");
    let huge = format!(":action: {}", "x".repeat(signalbox_core::discovered::spi::MAX_BYTES));
    broker.client().publish("/queue/routing", &[bad, huge, ruby(&end())]);
    consumer.wait_for("the-end");
    let letters = consumer.spi.dead_letters();
    assert_eq!(letters.len(), 2);
    assert_eq!(
        letters[0].reason,
        "document 1, line 2: `namespace`: expected a value, found nothing"
    );
    assert!(
        letters[0].text.contains("foo.example.com") && letters[0].text.ends_with("from here on)"),
        "{letters:?}"
    );
    assert_eq!(
        (letters[1].reason.as_str(), letters[1].text.len()),
        ("the message is too large", 4096)
    );
    let on_disk = disk
        .records()
        .into_iter()
        .flat_map(|(_, bytes)| bytes)
        .collect::<Vec<u8>>();
    assert!(!String::from_utf8(on_disk).unwrap().contains("c2VjcmV0"));
    // The dead letters are there again after a restart.
    consumer.kill(&runtime);
    assert_eq!(Consumer::start(&runtime, settings, &disk).spi.dead_letters(), letters);
}
