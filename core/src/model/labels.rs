//! Labels of the objects that ask for names, and selectors of labels in the grammar of Kubernetes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Labels of one object, by key.
pub type Labels = BTreeMap<String, String>;

/// Empty set of labels.
static NO_LABELS: Labels = Labels::new();

/// Labels of the objects that make one claim: a set for each object whose labels differ from the others'. An object
/// without labels has an empty set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(from = "LabelSetsRepr", into = "LabelSetsRepr")]
pub struct LabelSets(Vec<Labels>);

/// JSON form: `{"app": "shop"}`, or a list of such objects.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "expected labels, as in {\"app\": \"shop\"}, or a list of such"
)]
enum LabelSetsRepr {
    Single(Labels),
    Several(Vec<Labels>),
}

impl From<LabelSetsRepr> for LabelSets {
    fn from(written: LabelSetsRepr) -> Self {
        match written {
            LabelSetsRepr::Single(labels) => std::iter::once(labels).collect(),
            LabelSetsRepr::Several(sets) => sets.into_iter().collect(),
        }
    }
}

impl From<LabelSets> for LabelSetsRepr {
    fn from(mut sets: LabelSets) -> Self {
        match sets.0.len() {
            0 => Self::Single(Labels::new()),
            1 => Self::Single(sets.0.remove(0)),
            _ => Self::Several(sets.0),
        }
    }
}

impl FromIterator<Labels> for LabelSets {
    fn from_iter<T: IntoIterator<Item = Labels>>(sets: T) -> Self {
        let sets: BTreeSet<Labels> = sets.into_iter().collect();
        // A single empty set says no more than no set.
        let says_something = sets.iter().any(|labels| !labels.is_empty());
        Self(sets.into_iter().filter(|_| says_something).collect())
    }
}

impl LabelSets {
    /// Whether no object of the claim has a label.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets of labels, at least one.
    pub fn iter(&self) -> impl Iterator<Item = &Labels> {
        let none = self.0.is_empty().then_some(&NO_LABELS);
        self.0.iter().chain(none)
    }

    /// First label that breaks the rules of Kubernetes, as `key=value`.
    #[must_use]
    pub fn invalid_label(&self) -> Option<String> {
        let mut all = self.0.iter().flatten();
        let wrong = all.find(|(key, value)| !is_key(key) || !is_value(value));
        wrong.map(|(key, value)| format!("{key}={value}"))
    }
}

/// Label selector: the requirements on an object's labels, all of which must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    condition: Condition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Exists,
    Absent,
    In(BTreeSet<String>),
    /// Value not in the set; holds too where the key is absent.
    NotIn(BTreeSet<String>),
}

/// Error of a text that is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {at} {what}")]
pub struct SelectorError {
    /// Number of the character at fault, from 1.
    at: usize,
    what: String,
}

impl Selector {
    /// Parses a selector such as `app=shop,tier!=batch,zone in (a, b),!internal`: `=`, `==`, `!=`, `in`, `notin`, a key
    /// that must be there and, with `!`, a key that must not.
    ///
    /// # Errors
    ///
    /// The text is no selector; the error has the place of the first mistake.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut tokens = Tokens::of(text);
        let mut requirements = Vec::new();
        loop {
            requirements.push(tokens.requirement()?);
            match tokens.next() {
                (_, None) => return Ok(Self(requirements)),
                (_, Some(",")) => {}
                (at, Some(token)) => {
                    let what = format!("there is `{token}` where a comma or the end is expected");
                    return Err(SelectorError { at, what });
                }
            }
        }
    }

    /// Requirements as Kubernetes writes them in `matchExpressions`: key, operator, values.
    pub fn expressions(&self) -> impl Iterator<Item = (&str, &'static str, Vec<&str>)> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        self.0.iter().map(|Requirement { key, condition }| {
            let (operator, values) = match condition {
                Condition::Exists => ("Exists", &NONE),
                Condition::Absent => ("DoesNotExist", &NONE),
                Condition::In(values) => ("In", values),
                Condition::NotIn(values) => ("NotIn", values),
            };
            (key.as_str(), operator, values.iter().map(String::as_str).collect())
        })
    }

    /// Whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.get(&requirement.key);
            match &requirement.condition {
                Condition::Exists => value.is_some(),
                Condition::Absent => value.is_none(),
                Condition::In(values) => value.is_some_and(|value| values.contains(value)),
                Condition::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            }
        })
    }

    /// Whether any of these sets of labels is selected.
    #[must_use]
    pub fn matches_any(&self, all: &[&Labels]) -> bool {
        all.iter().any(|labels| self.matches(labels))
    }
}

/// Words and signs of a selector, with the numbers of their first characters.
struct Tokens<'a> {
    all: std::iter::Peekable<std::vec::IntoIter<(usize, &'a str)>>,
    /// Number of the character after the last.
    end: usize,
}

const OPERATORS: [&str; 7] = ["==", "!=", "=", "!", "(", ")", ","];

impl<'a> Tokens<'a> {
    fn of(text: &'a str) -> Self {
        let mut all = Vec::new();
        let (mut rest, mut at) = (text, 1);
        loop {
            let spaces = rest.chars().take_while(|c| c.is_whitespace()).count();
            (rest, at) = (rest.trim_start(), at + spaces);
            if rest.is_empty() {
                let all = all.into_iter().peekable();
                return Self { all, end: at };
            }
            let word = rest.split(|c: char| c.is_whitespace() || "=!(),".contains(c)).next();
            let sign = OPERATORS.iter().find(|sign| rest.starts_with(**sign));
            let length = sign.map_or_else(|| word.unwrap_or(rest).len(), |sign| sign.len());
            let (token, behind) = rest.split_at(length);
            all.push((at, token));
            (rest, at) = (behind, at + token.chars().count());
        }
    }

    fn next(&mut self) -> (usize, Option<&'a str>) {
        self.all
            .next()
            .map_or((self.end, None), |(at, token)| (at, Some(token)))
    }

    fn next_if(&mut self, is_meant: impl Fn(&str) -> bool) -> Option<(usize, &'a str)> {
        self.all.next_if(|(_, token)| is_meant(token))
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let is_absent = self.next_if(|token| token == "!").is_some();
        let (at, key) = self.next();
        let key = key.unwrap_or_default();
        if !is_key(key) {
            let what = match key {
                "" => "it ends where a label's key is expected".to_owned(),
                key => format!("there is `{key}`, which is not a label key"),
            };
            return Err(SelectorError { at, what });
        }
        let operator = self.next_if(|token| !is_absent && matches!(token, "=" | "==" | "!=" | "in" | "notin"));
        let condition = match operator.map(|(_, operator)| operator) {
            Some("!=") => Condition::NotIn(BTreeSet::from([self.value()?])),
            Some("in") => Condition::In(self.values()?),
            Some("notin") => Condition::NotIn(self.values()?),
            Some(_) => Condition::In(BTreeSet::from([self.value()?])),
            None if is_absent => Condition::Absent,
            None => Condition::Exists,
        };
        let key = key.to_owned();
        Ok(Requirement { key, condition })
    }

    /// Reads a value; an empty one if there is none.
    fn value(&mut self) -> Result<String, SelectorError> {
        let Some((at, value)) = self.next_if(|token| !OPERATORS.contains(&token)) else {
            return Ok(String::new());
        };
        if is_value(value) {
            return Ok(value.to_owned());
        }
        let what = format!("there is `{value}`, which is not a label value");
        Err(SelectorError { at, what })
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let mut values = BTreeSet::new();
        let mut expected = "(";
        loop {
            let (at, token) = self.next();
            match token {
                Some(")") if expected != "(" => return Ok(values),
                Some(token) if expected.contains(token) => {}
                _ => {
                    let what = "values in parentheses are expected, as in `tier in (web, batch)`".to_owned();
                    return Err(SelectorError { at, what });
                }
            }
            expected = ",)";
            values.insert(self.value()?);
        }
    }
}

/// Whether a text may be the key of a label: `name` or `domain/name`.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let (domain, name) = match text.split_once('/') {
        Some((domain, name)) => (Some(domain), name),
        None => (None, text),
    };
    let is_label = |label: &str| {
        let ends = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let bytes = label.as_bytes();
        bytes.iter().all(|b| inner(*b)) && ends(bytes.first()) && ends(bytes.last())
    };
    let is_domain = |domain: &str| domain.len() <= 253 && domain.split('.').all(is_label);
    !name.is_empty() && is_value(name) && domain.is_none_or(is_domain)
}

/// Whether a text may be the value of a label: empty, or at most 63 letters, digits, `-`, `_` and `.`, the first and
/// the last of them a letter or digit.
#[must_use]
pub fn is_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    bytes.len() <= 63 && bytes.iter().all(inner) && ends(bytes.first()) && ends(bytes.last())
}

#[cfg(test)]
mod tests;
