//! Error rates of the guards, by simulation: migrations between equal clusters, and how soon a worse one is found.

use std::f64::consts::TAU;

use super::super::guard::times::{BUCKETS, Times, bucket_of};
use super::*;

/// splitmix64: the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }

    /// How many of `all` events are faults. Draws the distances from one fault to the next.
    fn faults(&mut self, all: u64, share: f64) -> u64 {
        if share <= 0.0 {
            return 0;
        }
        let (mut at, mut faults) = (0, 0);
        loop {
            at += 1 + ((1.0 - self.roll()).ln() / (1.0 - share).ln()).min(1e15) as u64;
            if at > all {
                return faults;
            }
            faults += 1;
        }
    }

    /// Times to the begin of answers around a median: log-normal, 95 % of them below five times the median.
    fn times(&mut self, all: u64, median: f64) -> Times {
        let mut numbers = [0; BUCKETS];
        for _ in 0..all {
            let normal = (-2.0 * (1.0 - self.roll()).ln()).sqrt() * (TAU * self.roll()).cos();
            numbers[bucket_of((median * normal.exp()) as u64)] += 1;
        }
        Times::new(numbers.into_iter())
    }

    /// Adds connections with requests, each kind of fault with the same share.
    fn serve(&mut self, figures: &mut QualityFigures, connections: u64, Quality { share, median }: Quality) {
        let failed = self.faults(connections, share);
        figures.connects += connections - failed;
        figures.connect_failures += failed;
        figures.flows_ended += connections;
        figures.flows_broken += self.faults(connections, share);
        figures.answers += connections;
        figures.server_errors += self.faults(connections, share);
        if median > 0.0 {
            let times = self.times(connections, median);
            figures.first_byte_times = figures.first_byte_times.zip(&times, |a, b| a + b);
        }
    }
}

/// How well a cluster serves.
#[derive(Clone, Copy)]
struct Quality {
    /// Share of faults of each kind.
    share: f64,
    /// Median of the time to the begin of an answer, in microseconds; 0 without times.
    median: f64,
}

impl Quality {
    const fn with_faults(share: f64) -> Self {
        Self { share, median: 0.0 }
    }

    const fn with_median(median: f64) -> Self {
        Self { share: 0.0, median }
    }
}

/// Half a second passes with a number of connections. `due` has the parts of connections that are left over.
fn half_second(scene: &mut Scene, dice: &mut Dice, due: &mut [f64; 2], connections: f64, [old, new]: [Quality; 2]) {
    let share = f64::from(scene.migration.percent()) / 100.0;
    due[0] += connections * (1.0 - share);
    due[1] += connections * share;
    let clusters = [(&mut scene.seen.old, old), (&mut scene.seen.new, new)];
    for (due, (figures, quality)) in due.iter_mut().zip(clusters) {
        dice.serve(figures, due.floor() as u64, quality);
        *due = due.fract();
    }
    scene.seen.now += SECOND / 2;
    scene.migration.observe(&mut scene.watch, &scene.seen);
}

/// Runs a migration with a number of connections in each half second, between clusters that serve so. Returns the samples
/// of the new cluster in the last step, and whether it was rolled back.
fn run(dice: &mut Dice, steps: &[u32], connections: f64, [old, new]: [Quality; 2]) -> (u64, bool) {
    let mut scene = Scene::new();
    scene.migration.plan.steps = steps.to_vec();
    scene.migration.plan.hold_ms = 60 * SECOND;
    let mut due = [0.0, 0.0];
    while !scene.migration.state.is_ended() && !scene.migration.state.is_going_back() {
        half_second(&mut scene, dice, &mut due, connections, [old, new]);
    }
    let samples = scene.migration.steps.last().map_or(0, |step| step.new.samples());
    (samples, scene.migration.state.is_going_back())
}

#[test]
fn equal_clusters_are_rarely_rolled_back() {
    const RUNS: usize = 100;
    let mut dice = Dice(1);
    for (share, connections) in [(0.001, 50.0), (0.01, 1.0), (0.01, 10.0), (0.05, 10.0), (0.2, 10.0)] {
        let both = [Quality::with_faults(share); 2];
        let is_wrong = |_: &usize| run(&mut dice, &[5, 25, 50, 100], connections, both).1;
        let wrong = (0..RUNS).filter(is_wrong).count();
        println!("{share} of faults, {connections} connections in half a second: {wrong} of {RUNS} rolled back");
        assert!(wrong * 50 <= RUNS, "{share}, {connections}: {wrong} of {RUNS}");
    }
}

#[test]
fn a_worse_cluster_is_found_within_few_samples() {
    const RUNS: usize = 99;
    let mut dice = Dice(2);
    for (old, new, most) in [
        (0.001, 1.0, 12),
        (0.001, 0.5, 16),
        (0.001, 0.2, 50),
        (0.001, 0.05, 600),
        (0.01, 0.05, 700),
    ] {
        let mut samples: Vec<u64> = (0..RUNS)
            .map(|_| run(&mut dice, &[25, 100], 10.0, [old, new].map(Quality::with_faults)).0)
            .collect();
        samples.sort_unstable();
        let (median, late) = (samples[RUNS / 2], samples[RUNS * 95 / 100]);
        println!("{new} of faults for {old}: found after {median} samples, 95 % of runs after {late}");
        assert!(median <= most, "{new} for {old}: {samples:?}");
    }
}

#[test]
fn a_slower_cluster_is_found_and_an_equal_one_is_not_slower() {
    const RUNS: usize = 100;
    let mut dice = Dice(3);
    let mut wrong = |medians: [f64; 2]| {
        let rolled_back = |_: &usize| run(&mut dice, &[25, 100], 10.0, medians.map(Quality::with_median)).1;
        (0..RUNS).filter(rolled_back).count()
    };
    assert!(wrong([20_000.0; 2]) <= 2);
    assert!(wrong([20_000.0, 30_000.0]) <= 2, "less than three times as long");
    assert!(wrong([20_000.0, 200_000.0]) >= 99);
    assert!(wrong([500.0, 2_000.0]) <= 2, "ten milliseconds more are no fault");
}

/// At one connection a second for the new cluster, in a step of an hour.
#[test]
fn a_fault_that_begins_late_is_found_within_a_minute() {
    for failed_from in [700, 1300, 5000] {
        let mut dice = Dice(4);
        let mut scene = Scene::new();
        scene.migration.plan.steps = vec![50, 100];
        scene.migration.plan.hold_ms = 3600 * SECOND;
        let (good, bad) = (Quality::with_faults(0.001), Quality::with_faults(0.999_999));
        let mut due = [0.0, 0.0];
        let found = (0..7200).find(|number| {
            let new = if *number < failed_from { good } else { bad };
            half_second(&mut scene, &mut dice, &mut due, 1.0, [good, new]);
            scene.migration.state.is_going_back()
        });
        let after = found.map(|number| (number - failed_from) / 2);
        println!("found after {after:?} s");
        assert!(after.is_some_and(|seconds| seconds < 60), "{after:?}");
    }
}

/// A step that is paused for a day is judged all that time.
#[test]
fn a_long_pause_rolls_no_equal_cluster_back() {
    const RUNS: u32 = 3;
    let mut dice = Dice(5);
    let wrong = (0..RUNS).filter(|_| {
        let mut scene = Scene::new();
        scene.migration.plan.steps = vec![50, 100];
        let mut due = [0.0, 0.0];
        half_second(&mut scene, &mut dice, &mut due, 10.0, [Quality::with_faults(0.05); 2]);
        scene.migration.pause("").unwrap();
        for _ in 0..24 * 3600 * 2 {
            half_second(&mut scene, &mut dice, &mut due, 10.0, [Quality::with_faults(0.05); 2]);
        }
        scene.migration.state.is_going_back()
    });
    assert_eq!(wrong.count(), 0);
}
