//! Watches the lab until it is stopped: reports processes that have ended, and restarts them on request.

use std::io::BufRead as _;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::Result;

use super::balancer::Balancer;
use super::router::Router;
use super::say;
use crate::interrupt;

/// Watches until Ctrl-C, SIGTERM or SIGHUP.
pub(super) fn until_interrupted(balancer: &mut Balancer, routers: &mut [Router]) {
    let enter = lines();
    while !interrupt::raised() {
        for news in routers.iter_mut().filter_map(Router::news).chain(balancer.news()) {
            say(&news);
        }
        // Started by this thread only: children die with the thread that started them.
        if enter.try_recv().is_ok()
            && let Err(error) = restart(balancer, routers)
        {
            say(&format!("error: {error:#}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Starts processes that have ended; running ones stay as they are.
fn restart(balancer: &mut Balancer, routers: &mut [Router]) -> Result<()> {
    routers.iter_mut().try_for_each(Router::start)?;
    balancer.start()
}

/// Receives a message for each line of standard input as it is typed; none from `</dev/null`.
fn lines() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(());
        }
    });
    receiver
}
