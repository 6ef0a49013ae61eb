//! Which of the known names a misspelt one may stand for.

/// The known name that is most like this one; `None` where none is like it, or several are. Upper and lower case do not matter.
///
/// ```
/// let known = ["reservedSystemCPUs", "reservedMemory"];
/// assert_eq!(stelia_cpus::text::near::nearest("reservedSystemCpu", known), Some("reservedSystemCPUs"));
/// assert_eq!(stelia_cpus::text::near::nearest("reservedCpus", known), Some("reservedSystemCPUs"));
/// assert_eq!(stelia_cpus::text::near::nearest("maxPods", known), None);
/// ```
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let known: Vec<&str> = known.into_iter().collect();
    let lower = name.to_ascii_lowercase();
    let is_left_out = |known: &str| lower.len() * 2 > known.len() && is_within(&lower, &known.to_ascii_lowercase());
    misspelt(name, known.iter().copied()).or_else(|| {
        // A word was left out.
        let mut longer = known
            .into_iter()
            .filter(|known| name.len() <= MAX_LENGTH && is_left_out(known));
        match (longer.next(), longer.next()) {
            (only, None) => only,
            _ => None,
        }
    })
}

/// The known name from which this one differs in a character or two; `None` where there is none. Upper and lower case do not matter.
pub fn misspelt<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // What is longer is no name, and the comparison takes time with the square of the length.
    if name.len() > MAX_LENGTH {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let most = lower.len().div_ceil(DIFFERENCES).min(2);
    let distances = known
        .into_iter()
        .map(|known| (distance(&lower, &known.to_ascii_lowercase()), known));
    let near = distances.filter(|(distance, _)| *distance <= most).min();
    near.map(|(_, known)| known)
}

/// The longest name that is compared, in bytes.
const MAX_LENGTH: usize = 80;

/// A name may differ in one character for each of this many, and in two at most.
const DIFFERENCES: usize = 4;

/// How many characters have to be put in, left out or exchanged.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (place, another) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(byte != another);
            diagonal = row[place + 1];
            row[place + 1] = exchanged.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

/// Whether the one's characters are all in the other, in this order.
fn is_within(one: &str, other: &str) -> bool {
    let mut rest = other.bytes();
    one.bytes().all(|byte| rest.any(|another| another == byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_like_a_name_is_found_and_nothing_else() {
        let known = ["cpuManagerPolicy", "cpuManagerPolicyOptions", "podCIDR", "port"];
        let near = |name| nearest(name, known);
        assert_eq!(near("CPUManagerPolicy"), Some("cpuManagerPolicy"));
        assert_eq!(near("cpuManagerPolcy"), Some("cpuManagerPolicy"));
        assert_eq!(near("cpuManagerPolicyOption"), Some("cpuManagerPolicyOptions"));
        assert_eq!(near("ports"), Some("port"));
        assert_eq!(
            (near("cpuPolicy"), near("managerPolicy")),
            (Some("cpuManagerPolicy"), None),
            "the second is like two of them"
        );
        assert_eq!(misspelt("managerPolicy", known), None);
        assert_eq!(near("pods"), None);
        assert_eq!(near(""), None);
        assert_eq!(near(&"x".repeat(1000)), None);
    }
}
