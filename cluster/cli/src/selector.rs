//! `-l`: selectors of labels, in kubectl's grammar.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// Parses requirements with commas between them: `a=b`, `a==b`, `a!=b`, `a`, `!a`, `a in (b,c)`, `a notin (b,c)`.
///
/// # Errors
/// What is not a requirement.
pub fn parse(text: &str) -> Result<Selector, String> {
    let parts = split(text);
    let expressions: Result<Vec<Expression>, String> = parts.iter().map(|part| requirement(part)).collect();
    Ok(expressions?.into_iter().collect())
}

/// Splits at the commas that are not in parentheses.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0_u32;
    for char in text.chars() {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match parts.last_mut() {
            Some(last) if char != ',' || depth > 0 => last.push(char),
            _ => parts.push(String::new()),
        }
    }
    parts
}

fn requirement(text: &str) -> Result<Expression, String> {
    let wrong = || format!("{text:?} is not a requirement of labels, such as a=b, a!=b, a, !a or \"a in (b,c)\"");
    let key = |text: &str| {
        let text = text.trim();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        let is_key = !text.is_empty() && text.chars().all(fits);
        is_key.then(|| text.to_owned()).ok_or_else(wrong)
    };
    let value = |text: &str| {
        let text = text.trim();
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        text.chars().all(fits).then(|| text.to_owned()).ok_or_else(wrong)
    };
    if let Some((name, given)) = text.split_once("!=") {
        return Ok(Expression::NotEqual(key(name)?, value(given)?));
    }
    if let Some((name, given)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Ok(Expression::Equal(key(name)?, value(given)?));
    }
    if let Some((left, right)) = text.split_once('(') {
        let values = right.trim_end().strip_suffix(')').ok_or_else(wrong)?;
        let values: Result<BTreeSet<String>, String> = values.split(',').map(value).collect();
        let mut words = left.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(name), Some("in"), None) => Ok(Expression::In(key(name)?, values?)),
            (Some(name), Some("notin"), None) => Ok(Expression::NotIn(key(name)?, values?)),
            _ => Err(wrong()),
        };
    }
    match text.trim().strip_prefix('!') {
        Some(name) => Ok(Expression::DoesNotExist(key(name)?)),
        None => Ok(Expression::Exists(key(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::SelectorExt;

    use super::*;

    #[test]
    fn requirements_are_those_of_kubectl() {
        let labels = [("zone", "a"), ("kubernetes.io/arch", "amd64"), ("gpu", "")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (text, expected) in [
            ("zone=a", true),
            ("zone == a", true),
            ("zone!=a", false),
            ("zone in (a,b),kubernetes.io/arch=amd64", true),
            ("zone notin (b, c)", true),
            ("zone notin (a)", false),
            ("gpu", true),
            ("gpu=", true),
            ("!gpu", false),
            ("!tpu,gpu", true),
            ("tpu", false),
        ] {
            assert_eq!(parse(text).unwrap().matches(&labels), expected, "{text}");
        }
        for text in [
            "", "a b", "a in b", "a in (b", "a,,b", "a is (b)", "a=b c", "=b", "a(b)",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
