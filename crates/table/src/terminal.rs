//! What the environment says of the terminal: colours and characters, by the rules of systemd's programs.

use std::io::IsTerminal;

/// Whether standard output is coloured (systemd(1), "Environment": `SYSTEMD_COLORS`; no-color.org; TERM=dumb).
pub fn coloured() -> bool {
    is_coloured(|name| std::env::var(name).ok(), std::io::stdout().is_terminal())
}

fn is_coloured(variable: impl Fn(&str) -> Option<String>, is_terminal: bool) -> bool {
    let asked = variable("SYSTEMD_COLORS").map(|value| value.to_ascii_lowercase());
    match asked.as_deref() {
        Some("0" | "no" | "n" | "false" | "f" | "off") => return false,
        Some("1" | "yes" | "y" | "true" | "t" | "on" | "16" | "256" | "24bit") => return true,
        // Any other value, such as auto-16, leaves it to the terminal.
        Some(_) if is_terminal => return true,
        _ => {}
    }
    let no_color = variable("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_terminal && !no_color && variable("TERM").as_deref() != Some("dumb")
}

/// Whether the locale's characters are UTF-8 (locale(7)). Without a locale they are taken to be, as systemd does; `C` that is asked for
/// has ASCII alone.
pub fn is_utf8() -> bool {
    is_utf8_by(|name| std::env::var(name).ok())
}

fn is_utf8_by(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable);
    let Some(locale) = set.into_iter().find(|value| !value.is_empty()) else {
        return true;
    };
    let charset = locale.split_once('.').map_or("", |(_, charset)| charset);
    let charset = charset.split('@').next().unwrap_or_default();
    charset.eq_ignore_ascii_case("UTF-8") || charset.eq_ignore_ascii_case("UTF8")
}

/// The text where the locale has ASCII alone: the characters that this program writes itself are replaced, names are not.
pub fn to_ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '…' => plain.push_str("..."),
            '→' => plain.push_str("->"),
            '≥' => plain.push_str(">="),
            '≤' => plain.push_str("<="),
            '×' => plain.push('x'),
            '·' | '–' | '—' | '─' | '━' => plain.push('-'),
            '│' | '┃' => plain.push('|'),
            '┌' | '┐' | '└' | '┘' | '├' | '┤' | '┬' | '┴' | '┼' => plain.push('+'),
            // The bars of a load, from low to high.
            '▁' => plain.push('_'),
            '▂' | '▃' => plain.push('.'),
            '▄' | '▅' => plain.push(':'),
            '▆' | '▇' => plain.push('|'),
            '█' => plain.push('#'),
            'µ' | 'μ' => plain.push('u'),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        }
    }

    #[test]
    fn a_terminal_has_colours_unless_a_variable_refuses_them() {
        for (variables, on_a_terminal, in_a_pipe) in [
            (&[][..], true, false),
            (&[("NO_COLOR", "1")], false, false),
            (&[("NO_COLOR", "")], true, false),
            (&[("TERM", "dumb")], false, false),
            (&[("SYSTEMD_COLORS", "0")], false, false),
            (&[("SYSTEMD_COLORS", "False")], false, false),
            (&[("SYSTEMD_COLORS", "auto-16")], true, false),
            (
                &[("SYSTEMD_COLORS", "1"), ("TERM", "dumb"), ("NO_COLOR", "1")],
                true,
                true,
            ),
            (&[("SYSTEMD_COLORS", "256")], true, true),
        ] {
            assert_eq!(is_coloured(of(variables), true), on_a_terminal, "{variables:?}");
            assert_eq!(is_coloured(of(variables), false), in_a_pipe, "{variables:?}");
        }
    }

    #[test]
    fn the_first_variable_that_is_set_is_the_locale() {
        for (variables, utf8) in [
            (&[][..], true),
            (&[("LANG", "C")], false),
            (&[("LANG", "POSIX")], false),
            (&[("LANG", "C.UTF-8")], true),
            (&[("LANG", "de_DE.utf8")], true),
            (&[("LANG", "de_DE@euro")], false),
            (&[("LANG", "de_DE.UTF-8@euro")], true),
            (&[("LC_ALL", "C"), ("LANG", "C.UTF-8")], false),
            (&[("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8"), ("LANG", "C")], true),
        ] {
            assert_eq!(is_utf8_by(of(variables)), utf8, "{variables:?}");
        }
    }

    #[test]
    fn plain_text_has_ascii_alone() {
        let plain = to_ascii("a…, ▁▅█ → 3–4 µs │ ≥ 2");
        assert_eq!(plain, "a..., _:# -> 3-4 us | >= 2");
        assert!(plain.is_ascii());
    }
}
