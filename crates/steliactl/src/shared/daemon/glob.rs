//! Patterns of names, as a shell has them: `*`, `?` and `[a-z]`; `[!a-z]` is any other character.

/// Whether it is a pattern and not a name.
pub(super) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether the whole text fits.
pub(super) fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut of) = (0, 0);
    // Where to continue if what follows the last `*` does not fit: behind it, and at the next character of the text.
    let mut retry = None;
    while of < text.len() {
        if pattern.get(at) == Some(&'*') {
            at += 1;
            retry = Some((at, of));
            continue;
        }
        if let Some(next) = one(&pattern, at, text[of]) {
            (at, of) = (next, of + 1);
            continue;
        }
        let Some((behind, from)) = retry else {
            return false;
        };
        retry = Some((behind, from + 1));
        (at, of) = (behind, from + 1);
    }
    pattern[at..].iter().all(|char| *char == '*')
}

/// Where the pattern goes on if the character fits at `at`.
fn one(pattern: &[char], at: usize, char: char) -> Option<usize> {
    match pattern.get(at)? {
        '?' => Some(at + 1),
        '[' => match class(pattern, at, char) {
            Some((fits, next)) => fits.then_some(next),
            // Not closed: it stands for itself.
            None => (char == '[').then_some(at + 1),
        },
        other => (*other == char).then_some(at + 1),
    }
}

/// Whether a class in brackets has the character, and where it ends; `None`: it does not end.
fn class(pattern: &[char], at: usize, char: char) -> Option<(bool, usize)> {
    let others = pattern.get(at + 1) == Some(&'!');
    let begins = at + 1 + usize::from(others);
    // A bracket directly behind the opening one is of the class.
    let length = pattern.get(begins + 1..)?.iter().position(|char| *char == ']')? + 1;
    let mut members = &pattern[begins..begins + length];
    let mut has = false;
    while let [first, rest @ ..] = members {
        match rest {
            ['-', last, rest @ ..] => {
                has |= (*first..=*last).contains(&char);
                members = rest;
            }
            rest => {
                has |= *first == char;
                members = rest;
            }
        }
    }
    Some((has != others, begins + length + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, fitting, other) in [
            ("vm-*", "vm-17", "xvm-17"),
            ("*-a/*", "team-a/web", "team-b/web"),
            ("vm-?", "vm-1", "vm-17"),
            ("vm-[0-4]", "vm-3", "vm-5"),
            ("vm-[!0-4]", "vm-5", "vm-3"),
            ("vm-[13]*", "vm-17", "vm-2"),
            ("*b*b", "abbab", "abba"),
            ("a[", "a[", "ab"),
            ("[]]", "]", "["),
            ("*", "", "\n\0nothing is refused"),
        ] {
            assert!(fits(pattern, fitting), "{pattern} {fitting}");
            assert_eq!(fits(pattern, other), pattern == "*", "{pattern} {other}");
        }
        assert!(is_pattern("vm-*") && !is_pattern("team-a/vm-1"));
    }
}
