//! Targets of rules.

use super::tokens::RuleWords;
use crate::firewall::form::{PacketKey, RuleStep, RuleVerdict};

/// Targets after which the next rule is handled, and that change nothing.
const WITHOUT_EFFECT: [&str; 6] = ["LOG", "NFLOG", "ULOG", "TRACE", "LED", "AUDIT"];

/// Targets that do something that those who bypass the rule would miss. Other names are those of chains.
const WITH_EFFECT: [&str; 29] = [
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DNPT",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "MASQUERADE",
    "NETMAP",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "RATEEST",
    "REDIRECT",
    "REJECT",
    "SECMARK",
    "SET",
    "SNAT",
    "SNPT",
    "SYNPROXY",
    "TCPMSS",
    "TEE",
    "TPROXY",
    "TTL",
];

/// Reads the target. `is_chain`: whether the table has a chain of a name, which may be that of a target too.
pub(super) fn read(tokens: &mut RuleWords, is_chain: impl Fn(&str) -> bool, steps: &mut Vec<RuleStep>) {
    let option = tokens.take();
    let target = tokens.take();
    let (option, target) = match (option.as_deref(), target) {
        // A rule without a target counts packets.
        (None, _) => return,
        (Some(option @ ("-j" | "-g")), Some(target)) => (option, target),
        _ => return steps.push(RuleStep::Effect("not understood".to_owned())),
    };
    let has_arguments = tokens.peek().is_some();
    let step = match target.as_str() {
        _ if option == "-g" => RuleStep::Verdict(RuleVerdict::Goto(target)),
        name if is_chain(name) => RuleStep::Verdict(RuleVerdict::Jump(target)),
        "ACCEPT" => RuleStep::Verdict(RuleVerdict::Accept),
        "DROP" => RuleStep::Verdict(RuleVerdict::Drop),
        "RETURN" => RuleStep::Verdict(RuleVerdict::Return),
        "MASQUERADE" if !has_arguments => RuleStep::Masquerade,
        // The programs keep segments within the path's MTU themselves.
        "TCPMSS" if tokens.peek() == Some("--clamp-mss-to-pmtu") => return,
        "MARK" | "CONNMARK" => mark(tokens).unwrap_or(RuleStep::Effect(target)),
        name if WITHOUT_EFFECT.contains(&name) => return,
        name if WITH_EFFECT.contains(&name) => RuleStep::Effect(target),
        _ => RuleStep::Verdict(RuleVerdict::Jump(target)),
    };
    steps.push(step);
}

/// The mark that a packet or a connection without one gets.
fn mark(tokens: &mut RuleWords) -> Option<RuleStep> {
    let number = match tokens.take()?.as_str() {
        "--set-mark" | "--set-xmark" | "--or-mark" | "--xor-mark" => {
            let value = tokens.take()?;
            super::matches::number(value.split('/').next()?)?
        }
        // The packet's mark and the connection's are 0: copying one, or removing bits, changes nothing.
        "--save-mark" | "--restore-mark" | "--and-mark" => 0,
        _ => return None,
    };
    Some(RuleStep::SetMark(PacketKey::Number(number)))
}
