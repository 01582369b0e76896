//! Every figure in which signalbox is worse than a rival, and by how much.

use std::fmt::Write as _;

use super::Report;
use super::row::{Row, Summary};
use super::tables::{OURS, about};
use crate::contender::is_rival;
use crate::load::anatomy::PARTS;
use crate::scenario::ScenarioKind;
use crate::stats::Spread;

/// A figure: its name, its unit's scale and digits, how it is read, and whether more is better.
struct Figure {
    name: &'static str,
    scale: f64,
    digits: usize,
    of: fn(&Summary) -> Option<Spread>,
    is_more_better: bool,
}

const fn less(name: &'static str, scale: f64, digits: usize, of: fn(&Summary) -> Option<Spread>) -> Figure {
    Figure {
        name,
        scale,
        digits,
        of,
        is_more_better: false,
    }
}

const RATE: Figure = Figure {
    name: "per second",
    scale: 1.0,
    digits: 0,
    of: |s| s.rate,
    is_more_better: true,
};
const GBIT: Figure = Figure {
    name: "Gbit/s",
    scale: 1.0,
    digits: 1,
    of: |s| s.gbit,
    is_more_better: true,
};
const P50: Figure = less("p50 ms", 1e-3, 3, |s| s.p50);
const P99: Figure = less("p99 ms", 1e-3, 3, |s| s.p99);
const P999: Figure = less("p99.9 ms", 1e-3, 3, |s| s.p999);
const CPU: Figure = less("machine's CPU µs for each", 1.0, 1, |s| s.cpu);
const CPU_GB: Figure = less("machine's CPU ms/GB", 1e-3, 0, |s| s.cpu);
const RESIDENT: Figure = less("KiB of the process for each", 1.0 / 1024.0, 2, |s| s.resident);
const KERNEL: Figure = less("KiB of the kernel for each", 1.0 / 1024.0, 2, |s| s.added_kernel);
const UNTIL_ALL: Figure = less("ms until all names answer", 1e-3, 1, |s| s.until_all);
const WORST: Figure = less("longest latency meanwhile, ms", 1e-3, 1, |s| s.worst);
const FAILED: Figure = less("failed requests", 1.0, 0, |s| s.failed);
const RESIDENT_AFTER: Figure = less("MiB of the process after it", 1.0 / 1_048_576.0, 1, |s| {
    s.resident_after
});

const LOST: Figure = less("lost %", 1.0, 2, |s| s.lost);
const WHOLE: Figure = less("µs from the SYN to the answer", 1.0, 1, |s| s.anatomy[PARTS - 1]);

/// Figures that a kind of scenario is about.
fn figures(kind: ScenarioKind) -> &'static [Figure] {
    match kind {
        ScenarioKind::Unique(_) | ScenarioKind::Reused(_) | ScenarioKind::Tls(_) | ScenarioKind::Tunnels(_) => {
            &[RATE, P50, P99, P999, CPU]
        }
        ScenarioKind::Streams(_) => &[RATE, CPU],
        ScenarioKind::Latency(_) | ScenarioKind::Openings(_) | ScenarioKind::Flooded(_) => &[P50, P99, P999, CPU],
        ScenarioKind::FailingHost(_) => &[P50, P99, P999, LOST, CPU],
        ScenarioKind::Large(_) | ScenarioKind::UniqueLarge(_) | ScenarioKind::UniqueHuge(_) => &[GBIT, P99, CPU_GB],
        ScenarioKind::Bulk(_) => &[GBIT, CPU_GB],
        ScenarioKind::Idle(_) | ScenarioKind::IdleTunnels(_) => &[RESIDENT, KERNEL],
        ScenarioKind::Anatomy => &[WHOLE],
        ScenarioKind::Change(_) => &[UNTIL_ALL, WORST, FAILED, RESIDENT_AFTER],
    }
}

/// The table, of all scenarios and numbers of threads.
pub(super) fn text(report: &Report) -> String {
    let mut text = about(report);
    text += "\n`~`: the two spreads overlap, so the difference may be noise.\n\n\
             | scenario | threads | figure | signalbox | better, and how many times |\n|---|---:|---|---:|---|\n";
    let mut count = 0;
    for ours in report.rows.iter().filter(|row| row.contender == OURS) {
        let same = |row: &&Row| row.scenario == ours.scenario && row.threads == ours.threads;
        let rivals = report.rows.iter().filter(same).filter(|row| is_rival(&row.contender));
        let rivals: Vec<_> = rivals
            .filter(|row| row.errors.is_empty() && row.absence.is_none())
            .collect();
        for line in lines(ours, &rivals) {
            let _ = writeln!(text, "| `{}` | {} | {line} |", ours.scenario.name, ours.threads);
            count += 1;
        }
    }
    if count == 0 {
        text += "| none | | | | |\n";
    }
    text
}

fn lines(ours: &Row, rivals: &[&Row]) -> Vec<String> {
    if !ours.errors.is_empty() {
        return vec!["all | **failed** | -".into()];
    }
    let mut lines = Vec::new();
    for figure in figures(ours.scenario.kind) {
        let Some(mine) = (figure.of)(&ours.summary) else {
            continue;
        };
        let mut better: Vec<_> = rivals
            .iter()
            .filter_map(|row| Some((&row.contender, (figure.of)(&row.summary)?)))
            .filter(|(_, theirs)| figure.is_worse(&mine, theirs))
            .collect();
        better.sort_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
        if figure.is_more_better {
            better.reverse();
        }
        let each: Vec<_> = better
            .iter()
            .map(|(name, theirs)| figure.better(name, &mine, theirs))
            .collect();
        if !each.is_empty() {
            lines.push(format!(
                "{} | {} | {}",
                figure.name,
                figure.shown(&mine),
                each.join(", ")
            ));
        }
    }
    lines
}

impl Figure {
    fn is_worse(&self, mine: &Spread, theirs: &Spread) -> bool {
        // Figures that are printed alike count as equal.
        let differs = self.shown(mine) != self.shown(theirs);
        differs && (mine.median < theirs.median) == self.is_more_better
    }

    fn shown(&self, value: &Spread) -> String {
        let digits = self.digits;
        format!("{:.digits$}", value.median * self.scale)
    }

    /// A rival's figure, and how many times it is better; memory and failures may be nothing.
    fn better(&self, name: &str, mine: &Spread, theirs: &Spread) -> String {
        let (more, less) = if self.is_more_better {
            (theirs, mine)
        } else {
            (mine, theirs)
        };
        let times = if less.median > 0.0 {
            format!(" ×{:.2}", more.median / less.median)
        } else {
            String::new()
        };
        let noise = if mine.min <= theirs.max && theirs.min <= mine.max {
            " ~"
        } else {
            ""
        };
        format!("{name} {}{times}{noise}", self.shown(theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture;
    use super::*;

    #[test]
    fn better_rivals_are_listed_with_their_ratio() {
        let text = text(&fixture::report());
        assert!(
            text.contains("| `unique-100` | 2 | per second | 3000 | envoy 4500 ×1.50 |"),
            "{text}"
        );
        // The made-up memory is the rate: less is better.
        let line = "| `idle-plain-9000` | 2 | KiB of the process for each | 2.93 | traefik 1.56 ×1.88, nginx 1.86 ×1.58, \
                    haproxy 1.95 ×1.50 |";
        assert!(text.contains(line), "{text}");
        assert!(!text.contains("caddy") && !text.contains("direct"));
    }

    #[test]
    fn figures_that_print_alike_are_equal_and_overlap_may_be_noise() {
        let spread = |values: [f64; 2]| Spread::of(values).unwrap();
        let (mine, theirs) = (spread([90.0, 100.0]), spread([95.0, 110.0]));
        assert!(RATE.is_worse(&mine, &theirs) && !RATE.is_worse(&theirs, &mine));
        assert_eq!(RATE.better("x", &mine, &theirs), "x 102 ×1.08 ~");
        assert!(!RATE.is_worse(&spread([95.1, 95.1]), &spread([95.2, 95.2])));
        assert_eq!(FAILED.better("x", &mine, &spread([0.0, 0.0])), "x 0");
    }
}
