//! "Did you mean": finds the known word that a misspelt one is close to.

/// Longest word that is compared, in characters: no key or name is longer.
const MAX_WORD_CHARS: usize = 64;

/// Candidate with the fewest slips between it and `word`, if there are few enough for a slip to be likely. Every
/// comparison takes its cost from `effort`; when that is used up there are no more suggestions.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>, effort: &mut usize) -> Option<&'a str> {
    let word: Vec<char> = word
        .chars()
        .take(MAX_WORD_CHARS + 1)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    if word.is_empty() || word.len() > MAX_WORD_CHARS {
        return None;
    }
    // Short words may have one slip, longer ones two, long ones three; with more, anything would resemble anything.
    let mut best = None;
    let mut bound = match word.len() {
        0..=3 => 1,
        4..=8 => 2,
        _ => 3,
    };
    for candidate in candidates {
        let close = candidate.len().abs_diff(word.len()) <= bound;
        let cost = if close {
            word.len().saturating_mul(candidate.len())
        } else {
            1
        };
        *effort = match effort.checked_sub(cost) {
            Some(left) => left,
            None => return best,
        };
        if !close {
            if best.is_none() && is_shortened(&word, candidate) {
                best = Some(candidate);
            }
            continue;
        }
        let other: Vec<char> = candidate.chars().map(|c| c.to_ascii_lowercase()).collect();
        // Two words without a letter in common are not misspellings of one another.
        if !other.iter().any(|c| word.contains(c)) {
            continue;
        }
        let distance = distance(&word, &other);
        if distance == 0 {
            return Some(candidate);
        }
        if distance <= bound {
            best = Some(candidate);
            bound = distance - 1; // the next has to be nearer
        }
    }
    best
}

/// Whether a word is the beginning of a longer one, such as `token` of `token_file`, hyphens and underscores aside.
fn is_shortened(word: &[char], candidate: &str) -> bool {
    const LEAST: usize = 4;
    let letters = |c: &char| !matches!(c, '_' | '-');
    let word: String = word.iter().copied().filter(letters).collect();
    let candidate: String = candidate.chars().filter(letters).collect();
    word.len() >= LEAST && candidate.starts_with(&word)
}

/// Number of letters that must be put in, left out, changed or swapped with their neighbour to turn one word into the
/// other ("optimal string alignment").
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, &from) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(above.len());
        let mut left = i + 1;
        row.push(left);
        for (j, (&to, pair)) in b.iter().zip(above.windows(2)).enumerate() {
            let &[diagonal, up] = pair else { continue };
            let mut cost = (diagonal + usize::from(from != to)).min(up + 1).min(left + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(&to) && b.get(j - 1) == Some(&from);
            if swapped && let Some(earlier) = before.get(j - 1) {
                cost = cost.min(earlier + 1);
            }
            row.push(cost);
            left = cost;
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    fn guess<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
        nearest(word, candidates.iter().copied(), &mut 1_000_000)
    }

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        let keys = ["listeners", "clusters", "routes", "timeouts", "name"];
        assert_eq!(guess("listners", &keys), Some("listeners"));
        assert_eq!(guess("Clusters", &keys), Some("clusters"));
        assert_eq!(guess("cluster", &keys), Some("clusters"));
        assert_eq!(guess("naem", &keys), Some("name"));
        assert_eq!(guess("route", &keys), Some("routes"));
    }

    #[test]
    fn the_beginning_of_a_word_is_understood() {
        assert_eq!(
            guess("leastconn", &["round_robin", "least-connections"]),
            Some("least-connections")
        );
        assert_eq!(guess("token", &["tls", "token_file"]), Some("token_file"));
        assert_eq!(guess("tok", &["token_file"]), None);
    }

    #[test]
    fn another_word_is_not_guessed_at() {
        assert_eq!(guess("backends", &["listeners", "clusters", "routes"]), None);
        assert_eq!(guess("", &["a"]), None);
        assert_eq!(guess("b", &["a"]), None);
        assert_eq!(guess(&"x".repeat(1000), &["a"]), None);
    }

    #[test]
    fn the_nearest_wins_and_the_first_of_equals() {
        assert_eq!(guess("east-9", &["west-9", "east-1", "east-2"]), Some("east-1"));
        assert_eq!(guess("eats", &["west", "east"]), Some("east"));
    }

    #[test]
    fn effort_has_an_end() {
        assert_eq!(nearest("naem", ["name"].into_iter(), &mut 15), None);
    }
}
