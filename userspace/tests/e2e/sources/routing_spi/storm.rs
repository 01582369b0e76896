//! Ten thousand messages: events of some applications, shuffled, many of them twice or cut short.

use signalbox_core::discovered::spi::{AppChange, AppKey, Certificate, Endpoint, Mapping, RoutingEvent, Secret, parse};

use super::naive::ruby;
use crate::lab::dice::Dice;

/// Messages, the last of which brings the application `the-end`, and the events in those that can be understood.
pub(crate) struct Storm {
    pub(crate) messages: Vec<String>,
    pub(crate) events: Vec<RoutingEvent>,
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
    messages.push(ruby(&RoutingEvent {
        app: key("the-end"),
        change: AppChange::Create {
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

fn random(dice: &mut Dice) -> RoutingEvent {
    let app = format!("app{}", dice.roll(25));
    let gear = format!("{app}gear{}", dice.roll(4));
    let at = format!("172.16.{}.{}:{}", dice.roll(2), 1 + dice.roll(3), 50_000 + dice.roll(3))
        .parse()
        .unwrap();
    let alias = format!("www{}.{app}.example.com", dice.roll(3));
    let word = |on: bool, yes: &str, no: &str| if on { yes.to_owned() } else { no.to_owned() };
    let balancer = dice.roll(2) == 0;
    let change = match dice.roll(20) {
        0 => AppChange::Create {
            scalable: Some(true),
            ha: Some(balancer),
        },
        1 => AppChange::Delete,
        2 => AppChange::Duplicate,
        3..=8 => AppChange::AddEndpoint {
            addr: at,
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
        9..=12 => AppChange::RemoveEndpoint {
            addr: at,
            gear: Some(gear),
        },
        13..=14 => AppChange::AddAlias(alias),
        15 => AppChange::RemoveAlias(alias),
        16..=18 => AppChange::AddCertificate {
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
        _ => AppChange::RemoveCertificate(alias),
    };
    RoutingEvent { app: key(&app), change }
}

/// Makes an event with a certificate and its key.
pub(crate) fn certificate(app: &str, alias: &str, secret: &str) -> RoutingEvent {
    RoutingEvent {
        app: key(app),
        change: AppChange::AddCertificate {
            alias: alias.into(),
            certificate: Box::new(Certificate {
                chain: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----".into(),
                private_key: Some(Secret::new(secret)),
                pass_phrase: None,
            }),
        },
    }
}
