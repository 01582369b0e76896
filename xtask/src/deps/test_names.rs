//! Rule for names of tests: subject, verb, condition, in so many characters that a list of tests can be read.

use super::code::only_code;

const MAX_CHARS: usize = 60;

/// First words that name no subject.
const NO_SUBJECTS: [&str; 6] = ["who_", "whoever_", "whose_", "what_", "whatever_", "nobody_"];

/// Finds names of tests that break the rule, each with its line.
pub(super) fn check(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut is_test = false;
    for (number, line) in only_code(text).lines().map(str::trim_start).enumerate() {
        if line.starts_with("#[") {
            is_test |= is_test_attribute(line);
            continue;
        }
        let Some(test) = is_test.then(|| function_name(line)).flatten() else {
            is_test &= line.is_empty();
            continue;
        };
        is_test = false;
        let at = format!("{name}:{}", number + 1);
        if test.len() > MAX_CHARS {
            let length = test.len();
            faults.push(format!(
                "{at}: the test {test} has {length} characters, {MAX_CHARS} may be"
            ));
        }
        if NO_SUBJECTS.iter().any(|first| test.starts_with(first)) {
            faults.push(format!(
                "{at}: the test {test} names no subject; begin with what the test is about"
            ));
        }
    }
    faults
}

fn is_test_attribute(line: &str) -> bool {
    let attribute = line.trim_start_matches("#[");
    let path = attribute.split(['(', ']']).next().unwrap_or_default();
    matches!(path.rsplit("::").next(), Some("test" | "lab_test"))
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_plain = before
        .split_whitespace()
        .all(|word| word.starts_with("pub") || word == "async");
    is_plain.then(|| after.split(['(', '<']).next().unwrap_or(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_and_one_without_a_subject_are_found() {
        let long = "a".repeat(MAX_CHARS + 1);
        for attribute in [
            "#[test]",
            "#[lab_test]",
            "#[tokio::test]",
            "#[test]\n#[ignore = \"slow\"]",
        ] {
            let named = |name: &str| check("core/src/x.rs", &format!("{attribute}\n\nasync fn {name}() {{}}\n"));
            assert_eq!(named(&long).len(), 1, "{attribute}");
            assert_eq!(named("who_is_refused").len(), 1, "{attribute}");
            assert_eq!(named(&long[1..]), Vec::<String>::new(), "{attribute}");
            assert_eq!(named("a_client_is_refused"), Vec::<String>::new(), "{attribute}");
        }
        assert!(check("core/src/x.rs", "#[test]\nfn what_is() {}")[0].starts_with("core/src/x.rs:2: "));
    }

    #[test]
    fn functions_that_are_no_tests_have_any_name() {
        for text in [
            "fn who_is_it() {}",
            "#[inline]\nfn what_is_it() {}",
            "#[test]\nfn a() {}\nfn what_is_it() {}",
            "// #[test]\nfn who_is_it() {}",
        ] {
            assert_eq!(check("core/src/x.rs", text), Vec::<String>::new(), "{text}");
        }
    }
}
