use super::*;

const LIMITS: GuardLimits = GuardLimits {
    max_error_permille: 10,
    max_latency_percent: 300,
    min_samples: 20,
};

fn connects(connects: u64, connect_failures: u64) -> QualityFigures {
    QualityFigures {
        connects,
        connect_failures,
        ..QualityFigures::default()
    }
}

fn answers(answers: u64, server_errors: u64) -> QualityFigures {
    QualityFigures {
        answers,
        server_errors,
        ..QualityFigures::default()
    }
}

/// Verdict on a step whose counts are seen once.
fn verdict_with(reference: &OldFigures, old: &QualityFigures, new: &QualityFigures) -> Option<String> {
    let nothing = QualityFigures::default();
    let mut period = Period::new(0, None, 60_000, 1.0, [&nothing, &nothing]);
    period.judge(&LIMITS, reference, 0, [old, new]).map(|(_, why)| why)
}

fn verdict(old: &QualityFigures, new: &QualityFigures) -> Option<String> {
    verdict_with(&OldFigures::default(), old, new)
}

#[test]
fn a_difference_is_a_verdict_only_if_chance_does_not_explain_it() {
    let good = connects(1000, 0);
    assert_eq!(verdict(&good, &connects(1000, 0)), None);
    assert_eq!(verdict(&good, &connects(6, 2)), None, "two faults are no rate");
    assert_eq!(verdict(&good, &connects(997, 3)), None, "within the margin");
    assert_eq!(verdict(&good, &connects(985, 15)), None, "perhaps within it");
    assert_eq!(verdict(&good, &connects(0, 7)), None, "too early to look");
    let why = verdict(&good, &connects(17, 3)).unwrap();
    assert_eq!(why, "3 of 20 connects failed; of the old cluster 0 of 1000");
    let why = verdict(&QualityFigures::default(), &connects(0, 8)).unwrap();
    assert_eq!(why, "8 of 8 connects failed");
}

#[test]
fn faults_that_the_old_cluster_shares_do_not_fail_the_new_one() {
    assert_eq!(verdict(&answers(1000, 50), &answers(100, 10)), None);
    let why = verdict(&answers(1000, 50), &answers(100, 20)).unwrap();
    assert_eq!(
        why,
        "20 of 100 requests were answered with 5xx; of the old cluster 50 of 1000"
    );
}

#[test]
fn without_old_traffic_the_last_known_rate_is_compared() {
    let mut reference = OldFigures::default();
    reference.update(&answers(19, 10));
    assert_eq!(reference, OldFigures::default(), "too few to be kept");
    reference.update(&answers(1000, 100));
    reference.update(&answers(199, 199));
    let (none, new) = (QualityFigures::default(), answers(200, 25));
    assert_eq!(verdict_with(&reference, &none, &new), None);
    assert!(verdict(&none, &new).is_some());
    let now = answers(1000, 0);
    assert_eq!(verdict_with(&reference, &now, &new), None, "it had as many before");
    reference.update(&now);
    assert!(verdict_with(&reference, &now, &new).is_some());
}

#[test]
fn broken_flows_count() {
    let broken = QualityFigures {
        connects: 30,
        flows_ended: 30,
        flows_broken: 10,
        ..QualityFigures::default()
    };
    let why = verdict(&QualityFigures::default(), &broken).unwrap();
    assert_eq!(why, "10 of 30 connections were reset or ended without an answer");
}

/// Times of so many connects: one part in ten takes `late` microseconds, all others `usual`.
fn timed(all: u64, usual: u64, late: u64) -> QualityFigures {
    let mut numbers = [0; times::BUCKETS];
    for number in 0..all {
        numbers[times::bucket_of(if number % 10 == 0 { late } else { usual })] += 1;
    }
    QualityFigures {
        connects: all,
        connect_times: Times::new(numbers.into_iter()),
        ..QualityFigures::default()
    }
}

#[test]
fn slow_times_are_compared_by_median_and_95th_percentile() {
    let old = timed(400, 1_000, 20_000);
    assert_eq!(
        verdict(&old, &timed(400, 5_000, 50_000)),
        None,
        "three times is allowed"
    );
    assert_eq!(verdict(&old, &timed(39, 900_000, 900_000)), None, "too few");
    assert_eq!(
        verdict(&timed(99, 1, 1), &timed(400, 900_000, 900_000)),
        None,
        "too few of the old one"
    );
    let why = verdict(&old, &timed(400, 1_000, 200_000)).unwrap();
    assert_eq!(
        why, "40 of 400 connects took more than 61.4 ms; of the old cluster 0 of 400",
        "one in ten is slow, and the mean hides it"
    );
    let why = verdict(&old, &timed(400, 16_000, 16_000)).unwrap();
    assert_eq!(
        why,
        "400 of 400 connects took more than 11.0 ms; of the old cluster 40 of 400"
    );
    let any = GuardLimits {
        max_latency_percent: 0,
        ..LIMITS
    };
    let nothing = QualityFigures::default();
    let mut period = Period::new(0, None, 60_000, 1.0, [&nothing, &nothing]);
    let slow = timed(400, 900_000, 900_000);
    assert_eq!(period.judge(&any, &OldFigures::default(), 0, [&old, &slow]), None);
}

#[test]
fn a_short_period_begins_again_and_sees_late_faults() {
    let nothing = QualityFigures::default();
    let mut period = Period::new(0, Some(5000), 60_000, 1.0, [&nothing, &nothing]);
    let good = connects(100_000, 0);
    let reference = OldFigures::default();
    assert_eq!(period.judge(&LIMITS, &reference, 5000, [&good, &good]), None);
    let late = connects(100_010, 10);
    let (_, why) = period.judge(&LIMITS, &reference, 5500, [&good, &late]).unwrap();
    assert_eq!(why, "10 of 20 connects failed");
}

#[test]
fn differences_of_counters_that_began_anew_are_nothing() {
    assert_eq!(connects(1, 0).since(&connects(5, 2)), connects(0, 0));
    assert_eq!(connects(5, 2).since(&connects(1, 1)), connects(4, 1));
    assert_eq!(connects(5, 2).plus(&connects(1, 1)).samples(), 9);
}
