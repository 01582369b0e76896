//! Configurations of contenders as files that a reader can judge: `bench/rivals/README.md` lists the placeholders.

use anyhow::{Context as _, Result, bail};

/// A file of `bench/rivals`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Template {
    /// Path below `bench/rivals`.
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

/// The template of a path below `bench/rivals`.
macro_rules! template {
    ($path:literal) => {
        $crate::contender::template::Template {
            name: $path,
            text: include_str!(concat!("../../rivals/", $path)),
        }
    };
}
pub(super) use template;

/// Flags that a line may be for.
const FLAGS: [&str; 7] = [
    "access-log",
    "proxy-protocol",
    "limits",
    "lists",
    "routes",
    "splice",
    "module",
];

/// Words, flags and names that a template is filled with.
#[derive(Debug, Default)]
pub(super) struct Filling {
    pub(super) words: Vec<(&'static str, String)>,
    pub(super) flags: Vec<&'static str>,
    /// Further names.
    pub(super) routes: Vec<String>,
    /// Addresses of hosts for HTTP.
    pub(super) hosts: Vec<String>,
}

impl Template {
    /// The file with all words filled in, and with the lines that the flags ask for.
    pub(super) fn fill(&self, filling: &Filling) -> Result<String> {
        let (mut text, mut block) = (String::new(), Vec::new());
        for (at, line) in self.text.lines().enumerate() {
            let place = || format!("bench/rivals/{}:{}", self.name, at + 1);
            match read(line, &filling.flags).with_context(place)? {
                Marked::Left => {}
                Marked::EachRoute(line) => block.push((line, at)),
                Marked::Once(line) => {
                    self.repeat(&mut text, &mut block, filling)?;
                    text += &replace(&line, &filling.words).with_context(place)?;
                    text.push('\n');
                }
                Marked::EachHost(line) => {
                    self.repeat(&mut text, &mut block, filling)?;
                    for (number, host) in (1..).zip(&filling.hosts) {
                        let mut words = filling.words.clone();
                        words.extend([("host", host.clone()), ("number", i32::to_string(&number))]);
                        text += &replace(&line, &words).with_context(place)?;
                        text.push('\n');
                    }
                }
            }
        }
        self.repeat(&mut text, &mut block, filling)?;
        Ok(text)
    }

    /// Writes a block once for each route, and empties it.
    fn repeat(&self, text: &mut String, block: &mut Vec<(String, usize)>, filling: &Filling) -> Result<()> {
        let mut words = filling.words.clone();
        for route in filling.routes.iter().filter(|_| !block.is_empty()) {
            words.push(("route", route.clone()));
            for (line, at) in block.iter() {
                let place = || format!("bench/rivals/{}:{}", self.name, at + 1);
                *text += &replace(line, &words).with_context(place)?;
                text.push('\n');
            }
            words.pop();
        }
        block.clear();
        Ok(())
    }
}

/// A line without its marks.
#[derive(Debug, PartialEq)]
enum Marked {
    Left,
    Once(String),
    EachRoute(String),
    EachHost(String),
}

fn read(line: &str, flags: &[&str]) -> Result<Marked> {
    let text = line.trim_start();
    let (indent, mut rest) = (&line[..line.len() - text.len()], text);
    let mut each: Option<fn(String) -> Marked> = None;
    while let Some((mark, after)) = rest.strip_prefix('<').and_then(|rest| rest.split_once("> ")) {
        let (is_wanted, flag) = mark.strip_prefix("no ").map_or((true, mark), |flag| (false, flag));
        if mark == "each route" {
            each = Some(Marked::EachRoute);
        } else if mark == "each host" {
            each = Some(Marked::EachHost);
        } else if !FLAGS.contains(&flag) {
            bail!("there is no flag `{flag}`; the flags are: {}", FLAGS.join(", "));
        } else if flags.contains(&flag) != is_wanted {
            return Ok(Marked::Left);
        }
        rest = after;
    }
    let line = format!("{indent}{rest}");
    Ok(each.unwrap_or(Marked::Once)(line))
}

/// Replaces `{word}` by its value. Braces around anything else belong to the product's language.
fn replace(line: &str, words: &[(&str, String)]) -> Result<String> {
    let (mut text, mut rest) = (String::new(), line);
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        text += before;
        let word = after[1..]
            .split_once('}')
            .map(|(word, _)| word)
            .filter(|word| is_word(word));
        let Some(word) = word else {
            text.push('{');
            rest = &after[1..];
            continue;
        };
        let Some((_, value)) = words.iter().find(|(known, _)| *known == word) else {
            bail!("there is no value for {{{word}}}");
        };
        text += value;
        rest = &after[word.len() + 2..];
    }
    Ok(text + rest)
}

fn is_word(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &'static str, flags: &[&'static str]) -> Result<String> {
        let filling = Filling {
            words: vec![("vip", "10.0.0.1".into()), ("dir", "/tmp".into())],
            flags: flags.to_vec(),
            routes: vec!["a".into(), "b".into()],
            hosts: vec!["10.1.0.1".into(), "10.1.0.2".into()],
        };
        Template { name: "x/y.cfg", text }.fill(&filling)
    }

    #[test]
    fn words_are_filled_in_and_other_braces_stay() {
        let text = "bind {vip}:80 { req.hdr(host) -i x } %{+Q}r ${vip} {}{dir}/{\n";
        let filled = "bind 10.0.0.1:80 { req.hdr(host) -i x } %{+Q}r $10.0.0.1 {}/tmp/{\n";
        assert_eq!(fill(text, &[]).unwrap(), filled);
    }

    #[test]
    fn missing_values_and_unknown_flags_are_errors_with_their_line() {
        let error = |text| format!("{:#}", fill(text, &["limits"]).unwrap_err());
        assert_eq!(error("a\n{vap}"), "bench/rivals/x/y.cfg:2: there is no value for {vap}");
        assert!(
            error("<limit> a")
                .starts_with("bench/rivals/x/y.cfg:1: there is no flag `limit`; the flags are: access-log")
        );
        assert_eq!(
            error("<limits> a {route}"),
            "bench/rivals/x/y.cfg:1: there is no value for {route}"
        );
        assert_eq!(
            error("<each route> {vap}"),
            "bench/rivals/x/y.cfg:1: there is no value for {vap}"
        );
    }

    #[test]
    fn lines_are_there_for_their_flags() {
        let text = "  <limits> a\n  <no limits> b\n<limits> <no splice> c\n";
        assert_eq!(fill(text, &["limits"]).unwrap(), "  a\nc\n");
        assert_eq!(fill(text, &["splice"]).unwrap(), "  b\n");
    }

    #[test]
    fn a_block_is_there_for_each_route() {
        let text = "<each route> {route} {\n<each route>   {vip}\n<each route> }\nend\n<each route> {route}";
        let filled = "a {\n  10.0.0.1\n}\nb {\n  10.0.0.1\n}\nend\na\nb\n";
        assert_eq!(fill(text, &[]).unwrap(), filled);
    }

    #[test]
    fn a_line_is_there_for_each_host() {
        let text = "a\n  <each host> <no limits> {number}: {host} {vip}\n<each host> <limits> x\nb\n";
        let filled = "a\n  1: 10.1.0.1 10.0.0.1\n  2: 10.1.0.2 10.0.0.1\nb\n";
        assert_eq!(fill(text, &[]).unwrap(), filled);
    }
}
