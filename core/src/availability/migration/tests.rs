mod simulated;

use super::guard::GuardLimits;
use super::probe::{ProbePlan, ProbeRound};
use super::*;

const SECOND: u64 = 1000;

fn plan() -> MigrationPlan {
    MigrationPlan {
        from: "v1".into(),
        to: "v2".into(),
        steps: vec![5, 25, 100],
        hold_ms: 10 * SECOND,
        limits: GuardLimits::default(),
        testers: Vec::new(),
        only_here: false,
        probe: None,
        leaves_out: false,
    }
}

fn migration() -> Migration {
    let before = vec![("v1".to_owned(), 7)];
    let names = BTreeMap::from([("a.test".to_owned(), None), ("b.test".to_owned(), Some(before))]);
    Migration::new(1, plan(), names, "root".into(), 0)
}

/// A migration, its watch, and a clock with counters.
struct Scene {
    migration: Migration,
    watch: StepWatch,
    seen: Observation,
}

impl Scene {
    fn new() -> Self {
        Self {
            migration: migration(),
            watch: StepWatch::default(),
            seen: Observation {
                now: 1_000_000,
                old: QualityFigures::default(),
                new: QualityFigures::default(),
                is_usable: true,
                is_complete: true,
                probes: None,
                rounds_begun: 0,
            },
        }
    }

    /// A second passes with `connects` connects of the new cluster, `failures` of which fail.
    fn second(&mut self, connects: u64, failures: u64) -> bool {
        self.seen.now += SECOND;
        self.seen.old.connects += 100;
        self.seen.new.connects += connects - failures;
        self.seen.new.connect_failures += failures;
        self.migration.observe(&mut self.watch, &self.seen)
    }

    /// Seconds pass until the state or the step changes; at most `most`.
    fn seconds(&mut self, most: usize, connects: u64) -> Option<usize> {
        (1..=most).find(|_| self.second(connects, 0))
    }
}

fn shares(migration: &Migration) -> Vec<(String, u32)> {
    migration.weights()["a.test"].clone().unwrap()
}

#[test]
fn a_good_cluster_gets_all_of_the_traffic_in_steps() {
    let mut scene = Scene::new();
    for (percent, is_last) in [(5, false), (25, false), (100, true)] {
        assert_eq!(scene.migration.percent(), percent);
        let wanted = [("v1".to_owned(), 100 - percent), ("v2".to_owned(), percent)];
        assert_eq!(shares(&scene.migration), wanted);
        assert!(!scene.watch.is_in_force());
        // The first observation begins the hold; ten seconds later it is over.
        assert_eq!(scene.seconds(30, 10), Some(11));
        assert_eq!(scene.migration.state.is_ended(), is_last);
    }
    assert_eq!(scene.migration.state, MigrationState::Completed);
    assert_eq!(scene.migration.ended, Some(scene.seen.now));
    assert!(!scene.second(10, 10), "nothing happens behind the end");
    let steps: Vec<_> = scene
        .migration
        .steps
        .iter()
        .map(|step| (step.percent, step.new.connects))
        .collect();
    assert_eq!(steps, [(5, 100), (25, 100), (100, 100)]);
    let report = report::markdown(&scene.migration, scene.seen.now);
    assert!(
        report.contains("Outcome: **completed**") && report.contains("| 25 % | 10.0 s | v2 | 100 | 0 |"),
        "{report}"
    );
    let proven =
        "- 100 %: percentage points that v2 can have more than v1 (with 95 % certainty): 1.9 of failed connects";
    assert!(report.contains(proven), "{report}");
}

#[test]
fn failures_roll_back_to_what_was_set_before() {
    let mut scene = Scene::new();
    scene.seconds(30, 10);
    assert!(!scene.second(10, 0));
    assert!(!scene.second(10, 2), "two are no rate");
    assert!(scene.second(10, 3));
    assert_eq!(scene.migration.state, MigrationState::RollingBack);
    assert!(
        scene.migration.reason.starts_with("at 25 %: 5 of 20 connects failed"),
        "{}",
        scene.migration.reason
    );
    let before = BTreeMap::from([
        ("a.test".to_owned(), None),
        ("b.test".to_owned(), Some(vec![("v1".to_owned(), 7)])),
    ]);
    assert_eq!(scene.migration.weights(), before);
    assert!(!scene.second(10, 10), "the guard has spoken");
    assert!(scene.migration.went_back(scene.seen.now) && !scene.migration.went_back(0));
    assert_eq!(scene.migration.state, MigrationState::RolledBack);
}

#[test]
fn late_failures_in_a_long_step_are_not_hidden_by_past_success() {
    let mut scene = Scene::new();
    scene.migration.plan.hold_ms = 3600 * SECOND;
    assert_eq!(scene.seconds(3000, 1000), None);
    let failed_after = (1..10).find(|_| scene.second(1000, 100));
    assert!(
        failed_after.is_some_and(|seconds| seconds <= 2),
        "{}",
        scene.migration.reason
    );
}

#[test]
fn a_cluster_without_a_host_fails_at_once() {
    let mut scene = Scene::new();
    assert!(!scene.second(0, 0));
    scene.seen.is_usable = false;
    assert!(scene.second(0, 0));
    assert_eq!(scene.migration.reason, "at 5 %: v2 has no host that takes connections");
    assert_eq!(scene.migration.failed_guard, Some(GuardKind::Hosts));
}

#[test]
fn a_step_waits_for_all_balancers_and_is_guarded_meanwhile() {
    let mut scene = Scene::new();
    scene.seen.is_complete = false;
    assert_eq!(scene.seconds(60, 10), None);
    assert_eq!(scene.migration.reason, "waits for other balancers");
    scene.seen.is_complete = true;
    assert_eq!(scene.seconds(2, 10), Some(1));
    scene.seen.is_complete = false;
    assert_eq!(scene.seconds(5, 10), None);
    assert!(scene.second(100, 50), "guards need no answer of others");
    assert_eq!(scene.migration.failed_guard, Some(GuardKind::Connects));
}

#[test]
fn testers_have_their_own_step_and_none_are_left_after_the_end() {
    let mut scene = Scene::new();
    scene.migration.plan.steps.insert(0, 0);
    let refused = scene.migration.plan.check().unwrap_err();
    assert!(refused.contains("from 1 to 100"), "{refused}");
    scene.migration.plan.testers = vec!["10.9.0.0/16".parse().unwrap()];
    assert_eq!(scene.migration.plan.check(), Ok(()));
    assert_eq!(shares(&scene.migration), [("v1".to_owned(), 100), ("v2".to_owned(), 0)]);
    let testers = scene.migration.testers();
    assert_eq!(testers.keys().collect::<Vec<_>>(), ["a.test", "b.test"]);
    assert_eq!(testers["a.test"].cluster, "v2");
    assert_eq!(scene.seconds(30, 0), None, "testers have to send something");
    assert_eq!(scene.seconds(30, 10), Some(2));
    assert_eq!(scene.migration.percent(), 5);
    assert_eq!(scene.migration.testers(), testers, "they stay at the new cluster");
    for _ in 0..3 {
        scene.seconds(30, 10);
    }
    assert_eq!(scene.migration.state, MigrationState::Completed);
    assert!(scene.migration.testers().is_empty());
}

#[test]
fn a_step_without_traffic_waits_for_it() {
    let mut scene = Scene::new();
    assert_eq!(scene.seconds(60, 0), None);
    assert!(scene.migration.reason.contains("0 of 20"), "{}", scene.migration.reason);
    assert!(!scene.second(19, 0));
    assert!(scene.second(1, 0));
    assert_eq!((scene.migration.percent(), scene.migration.reason.as_str()), (25, ""));
    scene.migration.plan.limits.min_samples = 0;
    assert_eq!(scene.seconds(60, 0), Some(11), "none is asked for");
}

#[test]
fn a_pause_lasts_until_it_is_resumed_and_is_guarded() {
    let mut scene = Scene::new();
    scene.second(10, 0);
    scene.migration.pause("lunch").unwrap();
    assert_eq!(scene.seconds(100, 10), None);
    assert_eq!(scene.migration.reason, "lunch");
    assert!(scene.migration.pause("").is_err());
    scene.migration.resume(&mut scene.watch).unwrap();
    assert_eq!(scene.seconds(100, 10), Some(11), "it is held anew");
    assert_eq!(scene.migration.steps.len(), 1, "as one step");
    assert!(scene.migration.resume(&mut scene.watch).is_err());
    scene.second(10, 0);
    scene.migration.pause("").unwrap();
    assert!(scene.second(100, 50), "{}", scene.migration.reason);
    assert_eq!(scene.migration.state, MigrationState::RollingBack);
    assert!(scene.migration.abort("", 0).is_err(), "it goes back already");
}

#[test]
fn an_abort_goes_back() {
    let mut scene = Scene::new();
    scene.second(10, 0);
    scene.migration.abort("called off", scene.seen.now).unwrap();
    assert_eq!(scene.migration.weights()["a.test"], None);
    assert!(scene.migration.went_back(scene.seen.now));
    assert_eq!(scene.migration.state, MigrationState::Aborted);
    let refused = scene.migration.abort("", 0).unwrap_err();
    assert_eq!(refused, "migration 1 is aborted: it cannot be aborted");
}

#[test]
fn a_restored_migration_keeps_its_step_and_restarts_its_hold() {
    let mut scene = Scene::new();
    scene.seconds(30, 10);
    scene.second(10, 0);
    let kept = serde_json::to_string(&scene.migration).unwrap();
    let read: Migration = serde_json::from_str(&kept).unwrap();
    assert_eq!(read, scene.migration);
    let now = scene.seen.now;
    scene = Scene {
        migration: read,
        ..Scene::new()
    };
    scene.seen.now = now;
    assert_eq!(scene.migration.percent(), 25);
    assert_eq!(
        scene.seconds(30, 10),
        Some(11),
        "counters begin at nothing, and the hold too"
    );
    assert_eq!(scene.migration.steps.len(), 2);
}

#[test]
fn plans_that_make_no_sense_are_refused() {
    let with = |change: &dyn Fn(&mut MigrationPlan)| {
        let mut plan = plan();
        change(&mut plan);
        plan.check()
    };
    assert_eq!(with(&|_| ()), Ok(()));
    for (change, why) in [
        (
            &(|plan: &mut MigrationPlan| plan.to = "v1".into()) as &dyn Fn(&mut MigrationPlan),
            "two clusters",
        ),
        (&|plan| plan.steps.clear(), "1 to 100 steps"),
        (&|plan| plan.steps = vec![50, 50], "that rise"),
        (&|plan| plan.steps = vec![0, 50], "from 1 to 100"),
        (&|plan| plan.steps = vec![50, 101], "from 1 to 100"),
        (&|plan| plan.hold_ms = u64::MAX, "a week"),
    ] {
        let refused = with(change).unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}

fn round(number: u64, worse: &[&str]) -> ProbeRound {
    ProbeRound {
        number,
        worse: worse
            .iter()
            .map(|name| ((*name).to_owned(), "w1: HTTP 503".to_owned()))
            .collect(),
        ..ProbeRound::default()
    }
}

fn probed_scene(leaves_out: bool) -> Scene {
    let mut scene = Scene::new();
    scene.migration.plan.probe = Some(ProbePlan::default());
    scene.migration.plan.leaves_out = leaves_out;
    assert!(scene.migration.awaits_probes());
    scene
}

#[test]
fn a_name_that_fails_its_first_probe_does_not_move() {
    let mut scene = probed_scene(false);
    assert!(scene.migration.probed(&round(5, &["b.test"]), 9));
    assert_eq!(scene.migration.state, MigrationState::RolledBack);
    assert_eq!(
        scene.migration.reason,
        "before the first step: b.test through w1: HTTP 503"
    );
    assert_eq!(scene.migration.failed_guard, Some(GuardKind::Probes));
    assert!(scene.migration.steps.is_empty() && scene.migration.ended == Some(9));

    let mut scene = probed_scene(true);
    assert!(scene.migration.probed(&round(5, &["b.test"]), 9));
    assert!(!scene.migration.awaits_probes());
    assert_eq!(scene.migration.state, MigrationState::Running);
    assert_eq!(scene.migration.weights().keys().collect::<Vec<_>>(), ["a.test"]);
    let report = report::markdown(&scene.migration, 20);
    assert!(report.contains("- Left out (1): b.test (w1: HTTP 503)"), "{report}");

    let mut scene = probed_scene(true);
    assert!(scene.migration.probed(&round(5, &["a.test", "b.test"]), 9));
    assert_eq!(scene.migration.state, MigrationState::RolledBack, "no name is left");
}

#[test]
fn testers_wait_for_the_first_round_of_probes_too() {
    let mut scene = probed_scene(false);
    scene.migration.plan.testers = vec!["10.9.0.0/16".parse().unwrap()];
    assert!(scene.migration.testers().is_empty());
    scene.migration.pause("").unwrap();
    assert!(!scene.migration.probed(&round(1, &[]), 9), "the pause may last long");
    assert!(scene.migration.testers().is_empty() && scene.migration.awaits_probes());
    scene.migration.resume(&mut scene.watch).unwrap();
    let mut lacking = round(2, &[]);
    lacking.unasked.insert("a.test".into(), "no descriptors".into());
    assert!(!scene.migration.probed(&lacking, 9) && scene.migration.awaits_probes());
    assert_eq!(
        scene.migration.reason,
        "asks again: 1 names could not be asked for: a.test: no descriptors"
    );
    assert!(scene.migration.probed(&round(1, &[]), 9));
    assert_eq!(scene.migration.testers().len(), 2);
}

#[test]
fn a_step_ends_after_a_round_of_probes_and_fails_by_one() {
    let mut scene = probed_scene(false);
    scene.migration.probed(&round(1, &[]), 9);
    (scene.seen.probes, scene.seen.rounds_begun) = (Some(round(1, &[])), 1);
    assert_eq!(scene.seconds(30, 10), None);
    assert_eq!(
        (scene.migration.percent(), scene.migration.reason.as_str()),
        (5, "waits for probes")
    );
    // A round that has begun in the step is over, and another one has begun.
    (scene.seen.probes, scene.seen.rounds_begun) = (Some(round(2, &[])), 3);
    assert_eq!(scene.seconds(1, 10), Some(1));
    assert_eq!(scene.migration.percent(), 25);
    assert!(!scene.second(10, 0), "the step begins");
    // A round that had begun before the step is not the one that the step needs, but its faults count.
    scene.seen.probes = Some(round(3, &[]));
    assert_eq!(scene.seconds(30, 10), None);
    scene.seen.probes = Some(round(4, &["a.test"]));
    assert!(scene.second(10, 0));
    assert_eq!(scene.migration.reason, "at 25 %: probe of a.test through w1: HTTP 503");
    assert_eq!(scene.migration.failed_guard, Some(GuardKind::Probes));
}

#[test]
fn an_abort_before_the_first_step_restores_nothing() {
    let mut scene = probed_scene(false);
    scene.migration.abort("aborted by root", 9).unwrap();
    assert_eq!(
        (scene.migration.state, scene.migration.ended),
        (MigrationState::Aborted, Some(9))
    );
    assert!(scene.migration.is_unmoved());
    assert!(!scene.migration.probed(&round(1, &["a.test"]), 9));
}
