//! The part of `doctor` about eBPF programs: loads each for a moment, and attaches those that `run` would attach.

use signalbox_kernel::Kernel;
use signalbox_kernel::capabilities::{self, CapabilityUse};
use signalbox_kernel::foreign;
use signalbox_kernel::has_tcx;
use signalbox_kernel::interfaces;
use signalbox_kernel::l4;
use signalbox_kernel::object::{self, ObjectLoader};
use signalbox_kernel::packet_filter::PacketFilter;
use signalbox_kernel::peek::LinkedObject;
use signalbox_kernel::verifier::{self, LoadOutcome, ProgramVerdict, VerifierRefusal};

use super::{Finding, degraded, ok};

/// Features that are missing if the kernel refuses a program, by the program's name.
const LOST_FEATURES: [(&str, &str); 8] = [
    (
        "steer",
        "each address is bound separately, and listening on prefixes does not work",
    ),
    ("sockmap_verdict", "there is no tier sockmap: flows use splice and copy"),
    (
        "cut_in",
        "there is no cut-through: flows use splice and copy, which is slower, and they end with the process",
    ),
    (
        "cut_out",
        "there is no cut-through: flows use splice and copy, which is slower, and they end with the process",
    ),
    (
        "l4_tc",
        "layer-4 services and the shield work only at interfaces whose driver supports XDP",
    ),
    (
        "l4_tc_ip",
        "the shield has no program at interfaces without Ethernet: connections of denied sources are accepted, and reset",
    ),
    ("l4_xdp", "layer-4 services and the shield run in TC, after the driver"),
    (
        "l4_decap",
        "there is no `signalbox unwrap`: hosts of services in mode dsr-ipip need a tunnel device",
    ),
];

/// Returns the findings, and each program's verdict.
pub(super) fn examine() -> (Vec<Finding>, Vec<ProgramVerdict>) {
    let verdicts = object::SHIPPED.map(|object| verifier::verdicts(object, signalbox_common::parts::ALL));
    let verdicts: Vec<_> = match verdicts.into_iter().collect::<Result<Vec<_>, _>>() {
        Ok(verdicts) => verdicts.into_iter().flatten().collect(),
        Err(error) => {
            let advice = "addresses are bound one by one, flows use splice and copy, and there are no layer-4 services \
                          and no shield. Run as root, or with the capabilities above";
            return (vec![degraded("eBPF programs", error.to_string(), advice)], Vec::new());
        }
    };
    let mut findings = vec![summary(&verdicts)];
    findings.extend(verdicts.iter().filter_map(refusal));
    findings.extend(attached());
    findings.push(cut(&verdicts));
    findings.push(layer4(&verdicts));
    findings.push(first_place());
    let of_peek = kernel_peek_verdicts();
    findings.push(kernel_peek(&of_peek));
    (findings, verdicts.into_iter().chain(of_peek).collect())
}

/// Returns the verdict on the kernel peek's programs.
fn kernel_peek_verdicts() -> Vec<ProgramVerdict> {
    let object = LinkedObject::new().bytes;
    verifier::verdicts(&object, signalbox_common::parts::ALL).unwrap_or_else(|error| {
        let refusal = VerifierRefusal {
            error: error.to_string(),
            reason: "the maps cannot be made".to_owned(),
            log: String::new(),
        };
        vec![ProgramVerdict {
            program: "peek_in".to_owned(),
            size: 0,
            outcome: LoadOutcome::Refused(refusal),
        }]
    })
}

/// Finds whether `datapath: { peek: auto }`, the default, routes connections in the kernel. Without it, only speed is
/// lost.
fn kernel_peek(verdicts: &[ProgramVerdict]) -> Finding {
    let what = "kernel peek";
    let refusal = verdicts.iter().find_map(|verdict| match &verdict.outcome {
        LoadOutcome::Refused(refusal) => Some(refusal),
        LoadOutcome::Accepted(_) => None,
    });
    match refusal {
        Some(VerifierRefusal { reason, .. }) if verifier::is_of_old_kernel(reason) => {
            return ok(
                what,
                format!(
                    "not available before Linux 5.17, so new connections get sockets and are routed in userspace: \
                     {reason}"
                ),
            );
        }
        Some(VerifierRefusal { error, reason, .. }) => {
            return degraded(
                what,
                format!("refused: {reason} ({error})"),
                format!(
                    "new connections get sockets and are routed in userspace, which is slower; {}",
                    signalbox_kernel::version::remedy()
                ),
            );
        }
        None => {}
    }
    let rules = PacketFilter::default().look();
    match rules.map(|rules| rules.tables.is_empty() && rules.virtual_services.is_empty()) {
        Ok(true) => ok(
            what,
            "connections are routed without a socket if their first data is sufficient",
        ),
        Ok(false) => ok(
            what,
            "the kernel accepts peek_in, and packet filters have rules: `signalbox explain NAME` says whether one of \
             them keeps connections from being routed in the kernel",
        ),
        Err(error) => ok(
            what,
            format!(
                "the kernel accepts peek_in, but rules of packet filters are not known, so listeners with \
                 `peek: auto` do not bypass them: {error}"
            ),
        ),
    }
}

/// Prints each verdict, with the verifier's statistics or the end of its log.
pub(super) fn print(verdicts: &[ProgramVerdict]) {
    for verdict in verdicts {
        match &verdict.outcome {
            LoadOutcome::Accepted(figures) => println!(
                "\nprogram {}: accepted; {} instructions, {} walked by the verifier, {} states",
                verdict.program, verdict.size, figures.instructions, figures.states
            ),
            LoadOutcome::Refused(refusal) => println!(
                "\nprogram {}: refused ({}): {}\n{}",
                verdict.program, refusal.error, refusal.reason, refusal.log
            ),
        }
    }
}

fn is_accepted(verdicts: &[ProgramVerdict], program: &str) -> bool {
    let of = verdicts.iter().find(|verdict| verdict.program == program);
    of.is_some_and(|verdict| matches!(verdict.outcome, LoadOutcome::Accepted(_)))
}

fn summary(verdicts: &[ProgramVerdict]) -> Finding {
    let (taken, refused): (Vec<_>, Vec<_>) = verdicts
        .iter()
        .map(|verdict| verdict.program.as_str())
        .partition(|program| is_accepted(verdicts, program));
    if refused.is_empty() {
        return ok("eBPF programs", format!("the kernel accepts {}", taken.join(", ")));
    }
    let found = format!("the kernel accepts {} of {}", taken.len(), verdicts.len());
    degraded(
        "eBPF programs",
        found,
        format!("it rejects {}: see below", refused.join(", ")),
    )
}

fn refusal(verdict: &ProgramVerdict) -> Option<Finding> {
    let LoadOutcome::Refused(refusal) = &verdict.outcome else {
        return None;
    };
    let (name, lost) = LOST_FEATURES.iter().find(|(program, _)| *program == verdict.program)?;
    let found = format!("refused: {} ({})", refusal.reason, refusal.error);
    let is_rewriting = name.starts_with("cut_") || name.starts_with("l4_");
    let lacking = is_rewriting
        .then(|| capabilities::missing_for(CapabilityUse::Rewriting))
        .flatten();
    let remedy = lacking.map_or_else(signalbox_kernel::version::remedy, |capability| {
        format!("it needs {capability}")
    });
    Some(degraded(name, found, format!("{lost}; {remedy}")))
}

/// Loads and attaches, for a moment, the programs that `run` would attach.
fn attached() -> Vec<Finding> {
    let mut kernel = match Kernel::load(&mut ObjectLoader::default()) {
        Ok(kernel) => kernel,
        Err(error) => {
            let why = signalbox_sys::error_chain(&error);
            let advice = "addresses are bound one by one, and flows use splice and copy";
            return vec![degraded("eBPF object", why, advice)];
        }
    };
    let steering = match kernel.steer() {
        Ok(_) => ok(
            "sk_lookup",
            "can be attached: one set of sockets serves every address and prefix",
        ),
        Err(error) => degraded(
            "sk_lookup",
            signalbox_sys::error_chain(&error),
            "each address is bound separately, and listening on prefixes does not work",
        ),
    };
    let sockmap = match kernel.degraded.iter().find(|(feature, _)| *feature == "sockmap") {
        None => ok(
            "sockmap",
            "can be attached; used only where `tier: sockmap` is configured",
        ),
        Some((_, why)) => degraded("sockmap", why.clone(), "flows go by splice and copy"),
    };
    vec![steering, sockmap]
}

/// Finds the interfaces to which tier `cut` would be attached, and by which hook.
fn cut(verdicts: &[ProgramVerdict]) -> Finding {
    let advice = "flows use splice and copy, which is slower, and they end with the process";
    if !is_accepted(verdicts, "cut_in") || !is_accepted(verdicts, "cut_out") {
        return degraded(
            "cut-through",
            "its programs are refused: see cut_in and cut_out",
            advice,
        );
    }
    let names: Vec<String> = interfaces::routed()
        .unwrap_or_default()
        .into_iter()
        .map(|i| i.name)
        .collect();
    if names.is_empty() {
        return degraded("cut-through", "no route leads through an Ethernet interface", advice);
    }
    let how = if has_tcx() {
        "tcx links"
    } else {
        "clsact filters (tcx needs kernel 6.6)"
    };
    ok("cut-through", format!("{how} on {}", names.join(", ")))
}

/// Finds foreign programs that see packets before those of a signalbox running here.
fn first_place() -> Finding {
    let used = [interfaces::routed(), interfaces::routed_without_ethernet()];
    let used: Vec<_> = used.into_iter().flatten().flatten().collect();
    let found: Vec<_> = foreign::before_ours(&used).iter().map(ToString::to_string).collect();
    if found.is_empty() {
        return ok("first place", "no other program sees packets before signalbox's");
    }
    degraded(
        "first place",
        found.join("; "),
        "packets that such a program drops or accepts never reach signalbox's: attach it after them, or have it pass \
         packets on (TC_ACT_UNSPEC)",
    )
}

/// Finds where the programs of layer-4 services and of the shield would be attached.
fn layer4(verdicts: &[ProgramVerdict]) -> Finding {
    let what = "services and shield";
    match (is_accepted(verdicts, "l4_tc"), is_accepted(verdicts, "l4_xdp")) {
        (false, false) => degraded(
            what,
            "their programs are refused: see l4_tc and l4_xdp",
            "`services` of the configuration do not work, and listeners work without a shield",
        ),
        (false, true) => degraded(
            what,
            "l4_tc is refused: see l4_tc",
            "they work only at interfaces whose driver supports XDP",
        ),
        (true, false) => ok(what, l4::hooks::planned_hook_in_tc("l4_xdp is refused")),
        _ => ok(what, l4::hooks::planned_hook()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn a_refused_kernel_peek_is_degraded_unless_a_helper_is_missing() {
        let verdict = |error: &str, reason: &str| {
            let refusal = VerifierRefusal {
                error: error.to_owned(),
                reason: reason.to_owned(),
                log: String::new(),
            };
            let found = kernel_peek(&[ProgramVerdict {
                program: "peek_in".to_owned(),
                size: 0,
                outcome: LoadOutcome::Refused(refusal),
            }]);
            assert!(found.found.contains(reason), "{found:?}");
            found.standing
        };
        let invalid = "Invalid argument (os error 22)";
        assert_eq!(verdict(invalid, "invalid func unknown#181"), CheckStatus::Ok);
        assert_eq!(
            verdict("Permission denied (os error 13)", "R1 invalid mem access"),
            CheckStatus::Degraded
        );
    }
}
