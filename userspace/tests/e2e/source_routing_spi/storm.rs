//! Ten thousand messages: events of some applications, shuffled, many of them twice or cut short.

use signalbox_core::spi::{AppKey, Certificate, Change, Endpoint, Event, Mapping, Secret, parse};

use super::naive::ruby;

/// Messages, the last of which brings the application `the-end`, and the events in those that can be understood.
pub(crate) struct Storm {
    pub(crate) messages: Vec<String>,
    pub(crate) events: Vec<Event>,
    pub(crate) bad: usize,
}

/// Makes a storm: equal seeds give equal storms.
pub(crate) fn storm(seed: u64, count: usize) -> Storm {
    let mut dice = Dice(seed);
    let mut messages = Vec::with_capacity(count);
    while messages.len() + 1 < count {
        let event = random(&mut dice);
        let mut text = ruby(&event);
        if dice.roll(10) == 0 {
            text.truncate(dice.roll(text.len()));
        }
        let times = 1 + dice.roll(3) / 2;
        messages.extend(std::iter::repeat_n(text, times.min(count - 1 - messages.len())));
    }
    for at in (1..messages.len()).rev() {
        messages.swap(at, dice.roll(at + 1));
    }
    messages.push(ruby(&Event {
        app: key("the-end"),
        change: Change::Create {
            scalable: None,
            ha: None,
        },
    }));
    let parsed: Vec<_> = messages.iter().map(|text| parse(text)).collect();
    Storm {
        bad: parsed.iter().filter(|result| result.is_err()).count(),
        events: parsed.into_iter().flatten().flatten().collect(),
        messages,
    }
}

pub(crate) fn key(app: &str) -> AppKey {
    AppKey {
        namespace: "demo".into(),
        app: app.into(),
    }
}

fn random(dice: &mut Dice) -> Event {
    let app = format!("app{}", dice.roll(25));
    let gear = format!("{app}gear{}", dice.roll(4));
    let at = format!("172.16.{}.{}:{}", dice.roll(2), 1 + dice.roll(3), 50_000 + dice.roll(3))
        .parse()
        .unwrap();
    let alias = format!("www{}.{app}.example.com", dice.roll(3));
    let word = |on: bool, yes: &str, no: &str| if on { yes.to_owned() } else { no.to_owned() };
    let balancer = dice.roll(2) == 0;
    let change = match dice.roll(20) {
        0 => Change::Create {
            scalable: Some(true),
            ha: Some(balancer),
        },
        1 => Change::Delete,
        2 => Change::Duplicate,
        3..=8 => Change::AddEndpoint {
            at,
            endpoint: Endpoint {
                gear: Some(gear),
                name: Some(word(balancer, "haproxy-1.4", "php-5.4")),
                protocols: ["http".to_owned(), "ws".to_owned()].into(),
                types: [word(balancer, "load_balancer", "web_framework")].into(),
                mappings: vec![Mapping {
                    frontend: "/health".into(),
                    backend: "/configuration/health".into(),
                }],
            },
        },
        9..=12 => Change::RemoveEndpoint { at, gear: Some(gear) },
        13..=14 => Change::AddAlias(alias),
        15 => Change::RemoveAlias(alias),
        16..=18 => Change::AddCertificate {
            alias,
            certificate: Box::new(Certificate {
                chain: format!(
                    "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----",
                    dice.roll(1000)
                ),
                private_key: None,
                pass_phrase: None,
            }),
        },
        _ => Change::RemoveCertificate(alias),
    };
    Event { app: key(&app), change }
}

/// Makes an event with a certificate and its key.
pub(crate) fn certificate(app: &str, alias: &str, secret: &str) -> Event {
    Event {
        app: key(app),
        change: Change::AddCertificate {
            alias: alias.into(),
            certificate: Box::new(Certificate {
                chain: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----".into(),
                private_key: Some(Secret::new(secret)),
                pass_phrase: None,
            }),
        },
    }
}

/// splitmix64: the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides.max(1) as u64) as usize
    }
}
