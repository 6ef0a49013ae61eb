//! The parts of an account on a terminal that is too narrow for them: the names become shorter, and columns that say no more than the sums
//! are left out, so that days and counts stay whole.

use stelia_table::{Column, TextStyle, shorten, table};

use super::{COLUMNS, Part};
use crate::cluster::{common_domain, without_domain};
use crate::vms::{LAUNCHER, without_launcher};

/// Blanks between two columns.
const COLUMN_GAP: usize = 2;
/// Names are not made shorter than this.
const MIN_NAME_WIDTH: usize = 8;

/// A column that may be left out: its heading, whether a row has the value that all must have, and that value.
type Omissible = (&'static str, fn(&Part) -> bool, &'static str);
/// Columns that may be left out, the first of them first.
const REPEATED: [Omissible; 3] = [
    ("OTHER DEVICES", |part| part.devices == 0, "0"),
    (
        "COVERED",
        |part| part.promised_us > 0 && part.covered_us == part.promised_us,
        "100%",
    ),
    ("OTHER TASKS", |part| part.other_tasks.most == 0, "0"),
];

/// The table of the parts, and what it leaves out, as sentences.
pub(super) fn parts_table(parts: &[Part], style: TextStyle) -> (String, Vec<String>) {
    let Some(width) = style.width.filter(|_| !style.wide) else {
        return (table(&COLUMNS, parts, style), Vec::new());
    };
    let mut notes = Vec::new();
    let mut parts = parts.to_vec();
    let mut columns: Vec<Column<Part>> = COLUMNS.into_iter().collect();
    columns.retain(|column| column.heading() != "POD UID");
    if needed(&columns, &parts) > width {
        let left_out = shorten_names(&mut parts);
        if !left_out.is_empty() {
            let left_out = left_out.join(" and ");
            notes.push(format!("Names are shown without {left_out}; --full shows them whole."));
        }
    }
    let mut same = Vec::new();
    for (heading, is_same, value) in REPEATED {
        if needed(&columns, &parts) > width && parts.iter().all(is_same) {
            columns.retain(|column| column.heading() != heading);
            same.push(format!("{heading} is {value}"));
        }
    }
    if !same.is_empty() {
        notes.push(format!(
            "In every row {}; -o wide shows these columns.",
            same.join(" and ")
        ));
    }
    let node = widest(&parts, |part| &part.node);
    let pod = widest(&parts, |part| &part.pod);
    let rest = (width + node + pod).saturating_sub(needed(&columns, &parts));
    if node + pod > rest {
        let node = node.min((rest / 2).max(MIN_NAME_WIDTH));
        let pod = rest.saturating_sub(node).max(MIN_NAME_WIDTH);
        for part in &mut parts {
            part.node = shorten(&part.node, node);
            part.pod = shorten(&part.pod, pod);
        }
    }
    (table(&columns, &parts, style), notes)
}

fn widest(parts: &[Part], text: fn(&Part) -> &String) -> usize {
    parts.iter().map(|part| text(part).chars().count()).max().unwrap_or(0)
}

/// The width at which nothing is cut and headings take several lines.
fn needed(columns: &[Column<Part>], parts: &[Part]) -> usize {
    let least = |column: &Column<Part>| {
        let cells = table(std::slice::from_ref(column), parts, TextStyle::default());
        let cells = cells.lines().map(|cell| cell.chars().count());
        let words = column.heading().split(' ').map(str::len);
        cells.chain(words).max().unwrap_or(0)
    };
    let gaps = COLUMN_GAP * columns.len().saturating_sub(1);
    columns.iter().map(least).sum::<usize>() + gaps
}

/// Leaves out the domain that all nodes have, and [`LAUNCHER`]. Answers what was left out.
fn shorten_names(parts: &mut [Part]) -> Vec<String> {
    let domain = common_domain(parts.iter().map(|part| part.node.as_str())).map(str::to_owned);
    let mut is_launcher = false;
    for part in parts {
        if domain.is_some() {
            part.node.truncate(without_domain(&part.node).len());
        }
        let short = without_launcher(&part.pod);
        is_launcher |= short != part.pod;
        part.pod = short;
    }
    let launcher = is_launcher.then(|| LAUNCHER.to_owned());
    launcher.into_iter().chain(domain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Range;

    const HOUR: u64 = 3_600_000_000;

    fn part(node: &str, pod: &str, devices: u64) -> Part {
        Part {
            node: node.to_owned(),
            directory: String::new(),
            pod_uid: "11111111-0000-4000-8000-000000000001".to_owned(),
            pod: pod.to_owned(),
            first_day: Some("2026-10-01".to_owned()),
            last_day: Some("2026-10-10".to_owned()),
            promised_us: 239 * HOUR,
            covered_us: 239 * HOUR,
            other_tasks: Range { least: 239, most: 239 },
            devices,
            delay_ns: 0,
            gaps: 0,
            seq: 1,
            hash: String::new(),
        }
    }

    /// Two nodes with a domain, as a cloud names them.
    fn parts(devices: u64) -> [Part; 2] {
        [("worker-001", "abcde"), ("worker-002", "fghij")].map(|(node, end)| {
            part(
                &format!("{node}.fra1.compute.example.internal"),
                &format!("team-alpha/virt-launcher-database-001-{end}"),
                devices,
            )
        })
    }

    fn narrow(parts: &[Part]) -> (String, Vec<String>) {
        let style = TextStyle {
            width: Some(80),
            ..TextStyle::from(true)
        };
        let (text, notes) = parts_table(parts, style);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(text.matches("2026-10-01  2026-10-10").count(), parts.len(), "{text}");
        (text, notes)
    }

    #[test]
    fn days_are_whole_beside_long_names() {
        let (text, notes) = narrow(&parts(0));
        for name in ["worker-001  team-alpha/database-001-abcde  ", "worker-002  team-alpha/"] {
            assert!(text.contains(name), "{text}");
        }
        assert!(!text.contains("DEVICES") && text.contains("TASKS"), "{text}");
        assert_eq!(
            notes,
            [
                "Names are shown without virt-launcher- and .fra1.compute.example.internal; --full shows them whole.",
                "In every row OTHER DEVICES is 0 and COVERED is 100%; -o wide shows these columns."
            ]
        );
        // A column with counts is never left out; the pod's name gives way then.
        let mut some = parts(7);
        some[1].covered_us -= HOUR;
        let (text, notes) = narrow(&some);
        for expected in ["DEVICES", "99.58%", "worker-001  ", "…", "cde  "] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn what_fits_or_goes_to_a_pipe_or_is_wide_is_whole() {
        let short = [part("n1", "team-a/web", 0)];
        assert_eq!(narrow(&short).1, Vec::<String>::new());
        assert!(narrow(&short).0.contains("DEVICES"));
        let wide = TextStyle {
            wide: true,
            width: Some(80),
            ..TextStyle::from(true)
        };
        for style in [TextStyle::from(true), wide] {
            assert_eq!(
                parts_table(&parts(0), style),
                (table(&COLUMNS, &parts(0), style), Vec::new())
            );
        }
    }
}
