//! The Kubernetes source in a storm: objects come and go while everything that can break does, in an order drawn from a
//! seed. When it is over, the last report agrees with the server's objects.

use crate::kube_api;
use crate::kube_api::watching::view_of;

use std::time::Duration;

use kube_api::objects::{gateway_route, ingress, route, router, router_of_3};
use kube_api::watching::{Watching, meaning, settings};
use kube_api::{Api, Server};
use serde_json::json;
use signalbox_common::hash;

/// Draws numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = hash::mix(self.0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        self.0 % most
    }
}

/// A change of some object: few names, so that they are fought over.
fn change_objects(api: &Api, dice: &mut Dice) {
    let namespace = ["shop", "bank", "infra"][dice.below(3) as usize];
    let name = format!("o{}", dice.below(5));
    let origin = format!("{namespace}/{name}");
    let host = ["a.test", "b.test", "c.test", "x.a.test", "", "bad name"][dice.below(6) as usize];
    let age = dice.below(4) as u32;
    let (node, ip) = (format!("n{}", dice.below(3)), format!("10.0.0.{}", dice.below(3) + 1));
    let kind = dice.below(16);
    api.change(|store| match kind {
        0..=4 => store.put("routes", route(age, &origin, host)),
        5 => {
            let mut refused = route(age, &origin, host);
            refused["status"]["ingress"][0]["conditions"][0]["status"] = json!("False");
            store.put("routes", refused);
        }
        6 => {
            let mut odd = route(age, &origin, host);
            odd["spec"] = json!("odd");
            store.put("routes", odd);
        }
        7 | 8 => store.delete("routes", namespace, &name),
        9 => store.put("ingresses", ingress(age, &origin, host)),
        10 => store.delete("ingresses", namespace, &name),
        11 => store.put("tlsroutes", gateway_route(age, &origin, host)),
        12 => store.delete("tlsroutes", namespace, &name),
        13 => store.put("pods", router(&name, &node, &ip, age > 0)),
        14 => store.put("pods", router_of_3(&name, &node, &ip)),
        _ => store.delete("pods", "openshift-ingress", &name),
    });
}

/// A misfortune.
async fn strike(api: &Api, server: &mut Option<Server>, dice: &mut Dice) {
    let how = dice.below(13);
    let few = dice.below(3) as usize + 1;
    match how {
        0 | 1 => match server.take() {
            Some(server) => server.kill().await,
            None => *server = Some(api.restart().await),
        },
        2 => api.change(kube_api::Store::compact),
        _ => api.change(|store| {
            let moods = &mut store.moods;
            match how {
                3 => moods.cuts += few,
                4 => moods.ends += few,
                5 => moods.garbled_lists += few,
                6 => moods.garbled_events += few,
                7 => moods.failures += few,
                8 => moods.gone_in_stream = !moods.gone_in_stream,
                9 => moods.page = Some(few),
                11 => moods.lost += 1,
                10 => moods.forgets_pages = !moods.forgets_pages,
                _ => {
                    // Gateway API may be missing for a moment, or be forbidden.
                    if !moods.missing.remove("gateway.networking.k8s.io") {
                        moods.missing.insert("gateway.networking.k8s.io");
                    }
                    if !moods.forbidden.remove("ingresses") {
                        moods.forbidden.insert("ingresses");
                    }
                }
            }
        }),
    }
}

async fn storm(seed: u64) {
    let mut dice = Dice(seed);
    let (api, server) = Api::start().await;
    let mut server = Some(server);
    let mut settings = settings(&api);
    settings.timings.silence_timeout = Duration::from_millis(300);
    let mut watching = Watching::start(settings);
    for _ in 0..8 {
        for _ in 0..25 {
            change_objects(&api, &mut dice);
            if dice.below(4) == 0 {
                strike(&api, &mut server, &mut dice).await;
            }
            if dice.below(3) == 0 {
                tokio::time::sleep(Duration::from_millis(dice.below(12))).await;
            }
        }
        api.change(|store| {
            let moods = std::mem::take(&mut store.moods);
            store.moods.page = moods.page;
            store.moods.gone_in_stream = moods.gone_in_stream;
        });
        if server.is_none() {
            server = Some(api.restart().await);
        }
        watching.settles(&api).await;
        // The source stays in touch.
        watching.stands(|view| view["connected"] == true).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        watching.drain();
        assert_eq!(watching.told.last(), Some(&meaning(&api, &watching.settings)));
    }
    println!(
        "seed {seed}: told {} times, {}",
        watching.told.len(),
        view_of(&watching.standing)["events"]
    );
}

mod share_1 {
    use super::*;

    #[tokio::test]
    async fn after_the_storm_all_is_as_the_server_has_it() {
        // `STORM` chooses other storms.
        let from = std::env::var("STORM").map_or(0, |seed| seed.parse().unwrap());
        for seed in from..from + 6 {
            println!("seed {seed}");
            storm(seed).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn and_with_threads() {
        for seed in 100..103 {
            println!("seed {seed}");
            storm(seed).await;
        }
    }
}
