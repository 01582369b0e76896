//! Faults in the middle of ten thousand messages.

use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use signalbox::compat::routing_spi::{EventsError, EventsOutcome, RoutingSpi};
use signalbox::source::DiscoveryUpdate;
use signalbox_core::discovered::spi::{AppChange, RoutingEvent, parse};
use signalbox_core::model::RoutingEvents;

use super::activemq::{ActiveMq, LONG, Scratch, available};
use super::consumer::{Consumer, QUEUE, certificates, runtime, settings};
use super::disk::{Disk, Moment};
use super::naive::{naive, ruby};
use super::storm::{certificate, key, storm};
use crate::kube_api::watching::view_of;
use crate::lab::eventually;

const COUNT: usize = 10_000;

/// A storm through every fault: a broker that is killed, a consumer that is killed between record and acknowledgement,
/// a ledger that fails.
#[test]
fn ten_thousand_messages_through_every_fault_match_the_model() {
    let test = "ten_thousand_messages_through_every_fault_match_the_model";
    if !available(test) {
        return;
    }
    let storm = storm(1, COUNT);
    assert!(storm.bad > COUNT / 20, "{} of {COUNT} cannot be understood", storm.bad);
    let wanted = naive(&storm.events);
    assert!(wanted.len() > 15, "{} applications", wanted.len());
    let mut broker = ActiveMq::start();
    broker.client().publish(QUEUE, &storm.messages);

    let (runtime, disk) = (runtime(), Arc::new(Disk::default()));
    // The first of the two addresses has no listener.
    let settings = settings(&[1, broker.port], QUEUE);
    let consumer = Consumer::start(&runtime, settings.clone(), &disk);
    let reach = |consumer: &Consumer, count: u64| {
        let there = eventually(LONG, || consumer.taken() >= count);
        assert!(
            there,
            "{} messages: {}",
            consumer.taken(),
            view_of(consumer.spi.status())
        );
    };
    reach(&consumer, 2000);
    broker.kill();
    broker.run();
    reach(&consumer, 4000);

    disk.stop_after(10, Moment::AfterRecord);
    let before = consumer.kill_stopped(&runtime, &disk);
    let consumer = Consumer::start(&runtime, settings.clone(), &disk);
    reach(&consumer, 2000);

    disk.fail(2);
    assert!(eventually(LONG, || disk.failures() == 0));
    consumer.wait_for("the-end");
    // The one that was killed has taken a message that came again.
    assert!(
        before + consumer.taken() > COUNT as u64,
        "{before} and {}",
        consumer.taken()
    );
    consumer.assert_is(&disk, &wanted, &settings);
    let waits = consumer
        .spi
        .status()
        .events
        .get()
        .into_iter()
        .find(|(kind, _)| *kind == "waiting");
    assert_eq!(waits, Some(("waiting", 2)));

    let letters = consumer.spi.dead_letters();
    assert_eq!(letters.len(), 100);
    assert!(
        letters.iter().all(|letter| letter.reason.starts_with("document ")),
        "{letters:?}"
    );
    let kept = disk
        .records()
        .iter()
        .filter(|(key, _)| key.starts_with("dead-letter/"))
        .count();
    assert_eq!(kept, 100);
    broker.assert_nothing_dead();
}

/// An event is acknowledged when it is recorded, not before: a consumer that dies on either side of that gets it again.
#[test]
fn an_unacknowledged_event_is_delivered_again_after_a_crash() {
    if !available("an_unacknowledged_event_is_delivered_again_after_a_crash") {
        return;
    }
    let (broker, runtime) = (ActiveMq::start(), runtime());
    let events = ["one", "two", "three", "the-end"].map(|app| RoutingEvent {
        app: key(app),
        change: AppChange::AddAlias(format!("{app}.example.com")),
    });
    for (moment, taken_before, queue) in [
        (Moment::BeforeRecord, 0, "/queue/before"),
        (Moment::AfterRecord, 1, "/queue/after"),
    ] {
        let disk = Arc::new(Disk::default());
        let settings = settings(&[broker.port], queue);
        broker.client().publish(queue, &events.each_ref().map(ruby));
        disk.stop_after(0, moment);
        let consumer = Consumer::start(&runtime, settings.clone(), &disk);
        assert_eq!(consumer.kill_stopped(&runtime, &disk), taken_before);
        assert_eq!(disk.records().len() as u64, taken_before);
        let consumer = Consumer::start(&runtime, settings.clone(), &disk);
        consumer.wait_for("the-end");
        assert_eq!(consumer.taken(), 4, "each came, also the one that had come before");
        consumer.assert_is(&disk, &naive(&events), &settings);
        consumer.kill(&runtime);
    }
}

/// A connection without events holds, and one whose broker has stopped (its kernel still acknowledges) does not.
#[test]
fn heart_beats_tell_a_quiet_broker_from_a_dead_one() {
    if !available("heart_beats_tell_a_quiet_broker_from_a_dead_one") {
        return;
    }
    let (broker, runtime, disk) = (ActiveMq::start(), runtime(), Arc::new(Disk::default()));
    let consumer = Consumer::start(&runtime, settings(&[broker.port], QUEUE), &disk);
    let standing = consumer.spi.status();
    assert!(eventually(LONG, || standing.connected()), "{}", view_of(standing));
    // The time of the last contact advances with each heart-beat.
    let (mut beats, mut last) = (0, f64::MAX);
    let beaten = eventually(LONG, || {
        let now = standing.staleness().unwrap();
        beats += u32::from(now < last);
        last = now;
        beats > 3
    });
    assert!(beaten && standing.failures.get() == 0, "{beats}: {}", view_of(standing));

    broker.signal(Signal::SIGSTOP);
    assert!(eventually(LONG, || !standing.connected()), "{}", view_of(standing));
    let view = view_of(standing);
    let error = view["last_error"].as_str().unwrap_or_default();
    assert!(error.contains("silent for longer than it promised"), "{error}");
    broker.signal(Signal::SIGCONT);
    broker.client().publish(
        QUEUE,
        &[ruby(&RoutingEvent {
            app: key("the-end"),
            change: AppChange::AddAlias("a.example.com".into()),
        })],
    );
    consumer.wait_for("the-end");
}

/// The store's refusals are reported; a file that cannot be written delays its application, but not forever.
#[test]
fn the_store_may_refuse_and_files_may_fail() {
    let (runtime, scratch) = (runtime(), Scratch::new());
    let told = Arc::new(Mutex::new(Vec::new()));
    let store = Arc::clone(&told);
    let tell = move |learnt: DiscoveryUpdate| {
        store.lock().unwrap().push(learnt.cluster.clone());
        if learnt.cluster == "demo/refused" {
            let _ = learnt.done.unwrap().send(Err("there is one in the file".to_owned()));
        }
    };
    let settings = RoutingEvents {
        certificates: certificates(&scratch),
        ..settings(&[1], QUEUE)
    };
    let spi = RoutingSpi::open(settings, [], Arc::new(Disk::default()), Box::new(tell), Box::new(drop)).unwrap();
    let apply = |event: &RoutingEvent| runtime.block_on(spi.apply_text(&ruby(event)));
    let create = |app: &str| RoutingEvent {
        app: key(app),
        change: AppChange::AddAlias("a.example.com".into()),
    };
    let refused = apply(&create("refused")).unwrap().refused;
    assert_eq!(refused["demo/refused"], "there is one in the file");
    assert!(apply(&create("taken")).unwrap().refused.is_empty());

    let obstacle = scratch.path().join("certificates/demo+phpha");
    std::fs::write(&obstacle, "in the way").unwrap();
    let event = certificate("phpha", "a.example.com", "KEY");
    assert!(matches!(apply(&event), Err(EventsError::Certificates(_))));
    assert!(!told.lock().unwrap().contains(&"demo/phpha".to_owned()));
    std::fs::remove_file(&obstacle).unwrap();
    let again = EventsOutcome {
        events: 1,
        changed: vec!["demo/phpha".into()],
        ..EventsOutcome::default()
    };
    assert_eq!(apply(&event).unwrap(), again);
    assert!(obstacle.join("a.example.com.key").exists());
    assert_eq!(*told.lock().unwrap(), ["demo/refused", "demo/taken", "demo/phpha"]);
}

/// Half a state is none: an error at start names the record to fix.
#[test]
fn a_broken_record_is_named_and_those_of_others_are_passed_over() {
    let open = |key: &str, bytes: &[u8]| {
        let records = [(key.to_owned(), bytes.to_vec())];
        RoutingSpi::open(
            settings(&[1], QUEUE),
            records,
            Arc::<Disk>::default(),
            Box::new(drop),
            Box::new(drop),
        )
    };
    let disk = Arc::new(Disk::default());
    let runtime = runtime();
    let consumer = Consumer::start(&runtime, settings(&[1], QUEUE), &disk);
    runtime
        .block_on(consumer.spi.apply_text(&ruby(&certificate("a", "x.example", "KEY"))))
        .unwrap();
    let (key, record) = disk.records().remove(0);
    assert_eq!(key, "application/demo/a");
    assert!(
        !String::from_utf8(record.clone()).unwrap().contains("KEY"),
        "kept without a directory for it"
    );
    assert_eq!(open(&key, &record).unwrap().applications(), consumer.spi.applications());
    assert!(open("rotated-out/a", b"?").unwrap().applications().is_empty());
    for (key, record, reason) in [
        (key.as_str(), &record[..9], "is malformed at byte 9"),
        ("application/demo/b", &record[..], "it is one of demo/a"),
        ("dead-letter/00000000000000000001", b"{}", "missing field"),
    ] {
        let error = open(key, record).err().unwrap().to_string();
        assert!(error.contains(key) && error.contains(reason), "{error}");
    }
}

/// Shows why a message that cannot be recorded is kept, and not refused.
#[test]
fn activemq_takes_a_refused_message_away() {
    if !available("activemq_takes_a_refused_message_away") {
        return;
    }
    let broker = ActiveMq::start();
    let mut client = broker.client();
    client.publish(QUEUE, &["refused".to_owned(), "next".to_owned()]);
    assert_eq!(broker.client().refuse_first(QUEUE), "refused");
    assert_eq!(broker.client().first(QUEUE), "next");
    assert_eq!(broker.client().first("/queue/ActiveMQ.DLQ"), "refused");
}

/// A text by HTTP has the effect of one by the broker; with a bad document in it, none.
#[test]
fn a_text_is_taken_whole_or_not_at_all() {
    let (runtime, disk) = (runtime(), Arc::new(Disk::default()));
    // The broker's address has no listener, and needs none.
    let settings = settings(&[1], QUEUE);
    let consumer = Consumer::start(&runtime, settings.clone(), &disk);
    let storm = storm(2, 500);
    let good: Vec<&String> = storm.messages.iter().filter(|text| parse(text).is_ok()).collect();
    let text: String = good.iter().map(|text| format!("{text}\n")).collect();

    let bad = format!("{text}---\n:action: :nonsense\n:app_name: a\n:namespace: n\n");
    let error = runtime.block_on(consumer.spi.apply_text(&bad)).unwrap_err().to_string();
    assert!(
        error.contains(&format!("document {}, line ", storm.events.len() + 1)),
        "{error}"
    );
    assert_eq!((consumer.spi.applications().len(), disk.records().len()), (0, 0));

    disk.fail(1);
    let error = runtime
        .block_on(consumer.spi.apply_text(&text))
        .unwrap_err()
        .to_string();
    assert_eq!(error, "the events could not be recorded: no space left on device");
    assert_eq!((consumer.spi.applications().len(), disk.records().len()), (0, 0));

    let wanted = naive(&storm.events);
    let calls = disk.calls();
    let outcome = runtime.block_on(consumer.spi.apply_text(&text)).unwrap();
    assert_eq!(
        (outcome.events, outcome.changed.len()),
        (storm.events.len(), wanted.len())
    );
    assert_eq!(disk.calls(), calls + 1, "one record for all of it");
    consumer.assert_is(&disk, &wanted, &settings);
    let again = runtime.block_on(consumer.spi.apply_text(good.last().unwrap())).unwrap();
    assert!(again.changed.is_empty() && disk.calls() == calls + 1, "{again:?}");
}

/// A message that cannot be recorded is skipped when an operator asks for it: kept for him, acknowledged, and the next
/// one comes.
#[test]
fn a_blocked_message_is_skipped_and_kept_among_the_dead_letters() {
    if !available("a_blocked_message_is_skipped_and_kept_among_the_dead_letters") {
        return;
    }
    let (broker, runtime, disk, scratch) = (ActiveMq::start(), runtime(), Arc::new(Disk::default()), Scratch::new());
    let settings = RoutingEvents {
        certificates: certificates(&scratch),
        ..settings(&[broker.port], QUEUE)
    };
    let consumer = Consumer::start(&runtime, settings.clone(), &disk);
    assert!(
        eventually(LONG, || consumer.spi.status().connected()),
        "{}",
        view_of(consumer.spi.status())
    );
    let skip = || runtime.block_on(consumer.spi.skip());
    assert!(skip().unwrap_err().to_string().contains("no message waits"));

    // The ledger can record nothing, not even the dead letter: it is known for as long as the process runs.
    disk.fail(u64::MAX);
    let alias = |app: &str| RoutingEvent {
        app: key(app),
        change: AppChange::AddAlias(format!("{app}.example.com")),
    };
    broker
        .client()
        .publish(QUEUE, &[ruby(&alias("one")), ruby(&alias("two"))]);
    assert!(eventually(LONG, || consumer
        .spi
        .blocked()
        .is_some_and(|blocked| blocked.attempts > 1)));
    let blocked = consumer.spi.blocked().unwrap();
    assert!(
        blocked.reason.contains("no space left") && blocked.text.contains("one.example.com"),
        "{blocked:?}"
    );
    let letter = skip().unwrap();
    assert!(
        letter.reason.contains("skipped") && letter.text.contains("one.example.com"),
        "{letter:?}"
    );
    disk.fail(0);
    consumer.wait_for("two");
    assert_eq!(consumer.spi.dead_letters(), [letter]);
    assert!(eventually(LONG, || consumer.spi.blocked().is_none()));

    // Recorded, but without its files: later messages are not held up by them.
    let obstacle = scratch.path().join("certificates/demo+three");
    std::fs::write(&obstacle, "in the way").unwrap();
    broker.client().publish(
        QUEUE,
        &[
            ruby(&certificate("three", "a.example.com", "KEY")),
            ruby(&alias("the-end")),
        ],
    );
    assert!(eventually(LONG, || consumer.spi.blocked().is_some()));
    let letter = skip().unwrap();
    assert!(!letter.text.contains("KEY"), "{letter:?}");
    consumer.wait_for("the-end");
    assert!(
        consumer.told.lock().unwrap().contains_key("demo/three"),
        "it is recorded, and told"
    );
    let skipped = consumer
        .spi
        .status()
        .events
        .get()
        .into_iter()
        .find(|(kind, _)| *kind == "skipped");
    assert_eq!((skipped, consumer.spi.dead_letters().len()), (Some(("skipped", 2)), 2));
    broker.assert_nothing_dead();
}
