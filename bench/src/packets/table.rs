//! The printed table: medians, and ratios of the same round.

use std::fmt::Write;

use super::contender::PacketContender;
use super::{PORTS, PacketPlan, PacketSample, PacketSeries, SOCKETS, flows};
use crate::stats::{Spread, paired};

/// Table with a line for each contender.
pub(super) fn text(series: &[PacketSeries], plan: &PacketPlan<'_>) -> String {
    let mut text = format!(
        "UDP of {} bytes, {} flows, one sender, {} rounds of {} s in turns; medians\n  \
         {:<24} {:>9} {:>16} {:>10} {:>7} {:>7} {:>10} {:>7}\n",
        flows::PAYLOAD.len(),
        SOCKETS * PORTS,
        plan.rounds,
        plan.length.as_secs_f64(),
        "",
        "arrived/s",
        "min..max",
        "x nftables",
        "CPU ns",
        "added",
        "softirq ns",
        "lost",
    );
    let of = |other: PacketContender| {
        PacketContender::ALL
            .iter()
            .position(|c| *c == other)
            .and_then(|at| series.get(at))
    };
    for (contender, samples) in PacketContender::ALL.iter().zip(series) {
        let spread = |of: fn(&PacketSample) -> f64| {
            Spread::of(samples.iter().map(|(_, sample)| of(sample))).unwrap_or(Spread {
                median: f64::NAN,
                min: f64::NAN,
                max: f64::NAN,
            })
        };
        let against = |other, combine: fn(&PacketSample, &PacketSample) -> f64| {
            let pairs = of(other).and_then(|other| paired(samples, other, |a, b| Some(combine(a, b))));
            pairs.map_or(f64::NAN, |pairs| pairs.median)
        };
        let rate = spread(|sample| sample.arrived);
        let _ = writeln!(
            text,
            "  {:<24} {:>9.0} {:>16} {:>10.2} {:>7.0} {:>7.0} {:>10.0} {:>5.1} %",
            contender.name(),
            rate.median,
            format!("{:.0}..{:.0}", rate.min, rate.max),
            against(PacketContender::Nftables, |a, b| a.arrived / b.arrived),
            spread(|sample| sample.cpu).median,
            against(PacketContender::Forwarding, |a, b| a.cpu - b.cpu),
            spread(|sample| sample.softirq).median,
            spread(|sample| sample.lost).median * 100.0,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates_are_compared_with_those_of_the_same_round() {
        let sample = |arrived| PacketSample {
            arrived,
            lost: 0.0,
            cpu: 1e9 / arrived,
            softirq: 0.0,
        };
        // The second round ran on a machine half as fast.
        let of = |rate: f64| vec![(0, sample(rate)), (1, sample(rate / 2.0))];
        let plan = PacketPlan {
            rounds: 2,
            length: Duration::from_secs(1),
            signalbox: None,
            may_install: false,
        };
        let text = text(&[of(400.0), of(200.0), of(300.0), of(100.0)], &plan);
        let words = |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(2)[..4], ["forwarding", "300", "200..400", "2.00"]);
        assert_eq!(words(4)[..5], ["signalbox,", "TC", "225", "150..300", "1.50"]);
    }
}
