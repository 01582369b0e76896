use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const HOUR: u64 = 3600;

/// Clock that the test sets.
#[derive(Clone)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn at(hours: u64) -> Self {
        let hands = Self(Arc::default());
        hands.set(hours);
        hands
    }

    fn set(&self, hours: u64) {
        self.0.store(1_700_006_400 + hours * HOUR, Ordering::Relaxed);
    }

    fn clock(&self) -> Clock {
        let Self(now) = self.clone();
        Arc::new(move || now.load(Ordering::Relaxed))
    }
}

fn ticketer(secret: u8, label: &str, hands: &Hands) -> Ticketer {
    Ticketer::new(&TicketSecret::new([secret; 32]), label, hands.clock())
}

#[test]
fn the_clock_of_these_tests_starts_with_an_epoch() {
    assert_eq!(1_700_006_400 % EPOCH_INTERVAL.as_secs(), 0);
}

#[test]
fn a_ticket_opens_wherever_the_secret_is_the_same() {
    let hands = Hands::at(0);
    let ticket = ticketer(1, "web", &hands).encrypt(b"session").unwrap();
    assert_eq!(ticketer(1, "web", &hands).decrypt(&ticket).unwrap(), b"session");
    assert_eq!(ticketer(2, "web", &hands).decrypt(&ticket), None);
}

#[test]
fn a_ticket_of_another_policy_is_not_accepted() {
    let hands = Hands::at(0);
    let ticket = ticketer(1, "web", &hands).encrypt(b"session").unwrap();
    assert_eq!(ticketer(1, "admin", &hands).decrypt(&ticket), None);
    assert_eq!(ticketer(1, "we", &hands).decrypt(&ticket), None);
}

#[test]
fn a_ticket_lives_for_its_epoch_and_two_more() {
    for issued in [0, 5] {
        let hands = Hands::at(issued);
        let ticketer = ticketer(1, "web", &hands);
        let ticket = ticketer.encrypt(b"session").unwrap();
        let told = u64::from(ticketer.lifetime()) / HOUR;
        for hours in issued..30 {
            hands.set(hours);
            let is_open = ticketer.decrypt(&ticket).is_some();
            assert_eq!(is_open, hours < 18, "issued at {issued} h, shown at {hours} h");
            assert!(is_open || hours - issued > told, "it lives as long as clients are told");
        }
    }
}

#[test]
fn keys_change_with_the_epoch() {
    let hands = Hands::at(0);
    let ticketer = ticketer(1, "web", &hands);
    let key = |hours: u64| {
        hands.set(hours);
        ticketer.encrypt(b"session").unwrap()[..NAME_BYTES].to_vec()
    };
    let names: Vec<_> = [0, 5, 6, 12, 600].into_iter().map(key).collect();
    assert_eq!(names[0], names[1]);
    assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), 4);
}

#[test]
fn a_ticket_of_a_balancer_whose_clock_is_ahead_is_accepted() {
    let ahead = ticketer(1, "web", &Hands::at(6)).encrypt(b"session").unwrap();
    assert!(ticketer(1, "web", &Hands::at(5)).decrypt(&ahead).is_some());
    let far_ahead = ticketer(1, "web", &Hands::at(12)).encrypt(b"session").unwrap();
    assert_eq!(ticketer(1, "web", &Hands::at(5)).decrypt(&far_ahead), None);
}

#[test]
fn two_tickets_of_one_session_differ_and_no_changed_one_opens() {
    let ticketer = ticketer(1, "web", &Hands::at(0));
    let ticket = ticketer.encrypt(b"session").unwrap();
    assert_ne!(ticket, ticketer.encrypt(b"session").unwrap());
    assert!(!ticket.windows(7).any(|window| window == b"session"));
    for at in 0..ticket.len() {
        let mut changed = ticket.clone();
        changed[at] ^= 1;
        assert_eq!(ticketer.decrypt(&changed), None, "byte {at}");
        assert_eq!(ticketer.decrypt(&ticket[..at]), None, "{at} bytes");
    }
}

#[test]
fn debug_shows_nothing_of_a_secret() {
    let secret = TicketSecret::new([0x5a; 32]);
    assert_eq!(format!("{secret:?}"), "TicketSecret");
    assert_eq!(
        format!("{:?}", ticketer(0x5a, "web", &Hands::at(0))),
        "Ticketer(\"web\")"
    );
    assert_ne!(TicketSecret::random(), TicketSecret::random());
}
