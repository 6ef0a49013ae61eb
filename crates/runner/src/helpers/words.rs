//! Splits a command line into words, as a shell without expansions does.

/// Splits at blanks, with single quotes, double quotes and backslashes. The error says what is not closed.
pub(crate) fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    // `Some("")` is a quoted empty word.
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('\'') => break,
                        Some(other) => word.push(other),
                        None => return Err("a single quote is not closed".into()),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('"') => break,
                        Some('\\') => match characters.next() {
                            Some(kept @ ('"' | '\\')) => word.push(kept),
                            Some(other) => word.extend(['\\', other]),
                            None => return Err("a double quote is not closed".into()),
                        },
                        Some(other) => word.push(other),
                        None => return Err("a double quote is not closed".into()),
                    }
                }
            }
            '\\' => match characters.next() {
                Some(other) => word.get_or_insert_default().push(other),
                None => return Err("nothing follows the last backslash".into()),
            },
            space if space.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("", &[])]
    #[case("  a  b\tc ", &["a", "b", "c"])]
    #[case("a 'b c' d", &["a", "b c", "d"])]
    #[case("a --x='y \"z\"'", &["a", "--x=y \"z\""])]
    #[case("a \"b \\\" \\\\ \\n\"", &["a", "b \" \\ \\n"])]
    #[case("a\\ b ''", &["a b", ""])]
    fn words_are_split_as_a_shell_does(#[case] text: &str, #[case] expected: &[&str]) {
        assert_eq!(split(text).unwrap(), expected);
    }

    #[rstest]
    #[case("'a")]
    #[case("\"a")]
    #[case("\"a\\")]
    #[case("a\\")]
    fn what_is_not_closed_is_an_error(#[case] text: &str) {
        assert!(split(text).is_err());
    }
}
