//! What the environment says of the terminal: colours, by the rules of systemd's programs.

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
}
