//! Tables: columns are declared once, and on a terminal they are cut to its width and coloured by meaning.

use std::fmt::Display;
use std::io::IsTerminal;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::printable;

/// Blanks between two columns.
const COLUMN_GAP: usize = 2;
/// A column is not cut below this width while another one can be cut.
const MIN_COLUMN_WIDTH: usize = 8;

/// How text is laid out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextStyle {
    /// Whether header lines are printed.
    pub legend: bool,
    /// Whether the columns of `-o wide` are shown.
    pub wide: bool,
    /// Columns to which lines are cut; `None`: nothing is cut.
    pub width: Option<usize>,
    pub coloured: bool,
}

impl TextStyle {
    /// For standard output: what reads a pipe gets everything, without colours.
    pub fn of_stdout(legend: bool, wide: bool, full: bool) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        Self {
            legend,
            wide,
            width: (is_terminal && !full).then(width),
            coloured: coloured(),
        }
    }
}

/// Whole and without colours, with header lines or not.
impl From<bool> for TextStyle {
    fn from(legend: bool) -> Self {
        Self {
            legend,
            ..Self::default()
        }
    }
}

/// The width from COLUMNS, else the terminal's, else 80.
pub fn width() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    columns.filter(|columns| *columns > 0).or_else(terminal).unwrap_or(80)
}

/// Whether standard output is a terminal and NO_COLOR is not set (no-color.org).
pub fn coloured() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stdout().is_terminal()
}

/// What a text means, for its colour: that of systemd's programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Meaning {
    #[default]
    Plain,
    Good,
    Attention,
    Broken,
    Absent,
}

impl Meaning {
    /// The meaning of an instance's state.
    pub fn of_state(state: &str) -> Self {
        match state {
            "isolated" => Self::Good,
            // Its CPUs are kept free by restricting others, or not at all.
            _ => Self::Attention,
        }
    }

    pub fn paint(self, text: &str, style: TextStyle) -> String {
        let code = match self {
            Self::Good => "32",
            Self::Attention => "33",
            Self::Broken => "31",
            Self::Absent => "2",
            Self::Plain => return text.to_owned(),
        };
        match style.coloured {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// A column of a table with rows of type `T`.
pub struct Column<T> {
    heading: &'static str,
    right: bool,
    wide: bool,
    yields: u8,
    /// What stands for an empty value.
    empty: &'static str,
    cell: fn(&T) -> String,
    meaning: fn(&T) -> Meaning,
}

/// A column that is aligned to the left. No cell is empty, so that awk finds each column.
pub const fn column<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column {
        heading,
        right: false,
        wide: false,
        yields: 0,
        empty: "-",
        cell,
        meaning: |_| Meaning::Plain,
    }
}

impl<T> Column<T> {
    /// Its heading.
    pub const fn heading(&self) -> &'static str {
        self.heading
    }

    /// Aligned to the right.
    pub const fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// Shown with `-o wide` only.
    pub const fn wide(self) -> Self {
        Self { wide: true, ..self }
    }

    /// On a narrow terminal the columns with the highest rank are cut first, and those without one last.
    pub const fn yields(self, rank: u8) -> Self {
        Self { yields: rank, ..self }
    }

    pub const fn means(self, meaning: fn(&T) -> Meaning) -> Self {
        Self { meaning, ..self }
    }

    /// For the last column only: nothing is printed for an empty value.
    pub const fn or_nothing(self) -> Self {
        Self { empty: "", ..self }
    }
}

struct Cell {
    text: String,
    meaning: Meaning,
}

/// The rows below the columns' headings; without rows only the headings are printed.
pub fn table<'a, T: 'a>(
    columns: &[Column<T>],
    rows: impl IntoIterator<Item = &'a T>,
    style: impl Into<TextStyle>,
) -> String {
    let style: TextStyle = style.into();
    let columns: Vec<&Column<T>> = columns.iter().filter(|column| style.wide || !column.wide).collect();
    let cell = |column: &Column<T>, row| match (column.cell)(row) {
        text if text.is_empty() => Cell {
            text: column.empty.to_owned(),
            meaning: Meaning::Absent,
        },
        text => Cell {
            text: printable(&text),
            meaning: (column.meaning)(row),
        },
    };
    let heading = |column: &&Column<T>| Cell {
        text: column.heading.to_owned(),
        meaning: Meaning::Plain,
    };
    let headings = style.legend.then(|| columns.iter().map(heading).collect());
    let rows = rows.into_iter();
    let rows = rows.map(|row| columns.iter().map(|column| cell(column, row)).collect());
    let lines: Vec<Vec<Cell>> = headings.into_iter().chain(rows).collect();

    let widest = |at: usize| lines.iter().map(|line| line[at].text.width()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    if let Some(width) = style.width {
        let ranks: Vec<u8> = columns.iter().map(|column| column.yields).collect();
        shrink(&mut widths, &ranks, width);
    }
    let line = |cells: &Vec<Cell>| {
        let mut line = String::new();
        let mut pending = 0;
        for ((cell, column), width) in cells.iter().zip(&columns).zip(&widths) {
            let text = cut(&cell.text, *width);
            let blanks = width - text.width();
            let (before, after) = if column.right { (blanks, 0) } else { (0, blanks) };
            // Nothing stands behind the last text.
            if !text.is_empty() {
                line.extend(std::iter::repeat_n(' ', pending + before));
                line += &cell.meaning.paint(&text, style);
                pending = 0;
            } else {
                pending += before;
            }
            pending += after + COLUMN_GAP;
        }
        line + "\n"
    };
    lines.iter().map(line).collect()
}

/// Takes from the columns what does not fit into `width`: from those of the highest rank first, of these always from the
/// widest one.
fn shrink(widths: &mut [usize], ranks: &[u8], width: usize) {
    let gaps = COLUMN_GAP * widths.len().saturating_sub(1);
    let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(width);
    // The last round is for a terminal so narrow that every column has to give more.
    let rounds = (0..=ranks.iter().copied().max().unwrap_or(0)).rev();
    let rounds = rounds.map(|rank| (Some(rank), MIN_COLUMN_WIDTH)).chain([(None, 1)]);
    for (rank, least) in rounds {
        while over > 0 {
            let candidates = (0..widths.len()).filter(|at| rank.is_none_or(|rank| ranks[*at] == rank));
            let widest = candidates.filter(|at| widths[*at] > least).max_by_key(|at| widths[*at]);
            let Some(widest) = widest else { break };
            widths[widest] -= 1;
            over -= 1;
        }
    }
}

/// At most `width` columns of the text, the last of which is an ellipsis where something is missing.
pub fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |char: &char| match char.width().unwrap_or(0) {
        wide if wide <= left => {
            left -= wide;
            true
        }
        _ => false,
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// `Name: value`, one per line.
pub fn properties<N: Display>(rows: impl IntoIterator<Item = (N, String)>, style: impl Into<TextStyle>) -> String {
    let columns = [
        column("", |(name, _): &(String, String)| name.clone()),
        column("", |(_, value): &(String, String)| value.clone()).yields(1),
    ];
    let rows = rows.into_iter();
    let rows: Vec<(String, String)> = rows.map(|(name, value)| (format!("{name}:"), value)).collect();
    let style = TextStyle {
        legend: false,
        ..style.into()
    };
    table(&columns, &rows, style)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = [&'static str; 3];

    const COLUMNS: [Column<Row>; 4] = [
        column("POD", |[pod, ..]: &Row| (*pod).to_owned()).yields(1),
        column("UID", |_| "3ceda12c".to_owned()).wide(),
        column("STATE", |[_, state, _]: &Row| (*state).to_owned()).means(|[_, state, _]| Meaning::of_state(state)),
        column("WHY", |[.., why]: &Row| (*why).to_owned()).yields(2),
    ];
    const ROWS: [Row; 2] = [
        ["team-a/web", "isolated", ""],
        [
            "team-b/数据库-0",
            "floating",
            "QEMU has not attached its vCPUs for 10 s",
        ],
    ];

    fn at(width: usize) -> TextStyle {
        TextStyle {
            legend: true,
            width: Some(width),
            ..TextStyle::default()
        }
    }

    #[test]
    fn a_name_cannot_steer_the_terminal() {
        assert_eq!(printable("a\x1b[2J\nb"), "a?[2J?b");
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        assert_eq!(
            table(&COLUMNS, &ROWS, true),
            "POD              STATE     WHY\n\
             team-a/web       isolated  -\n\
             team-b/数据库-0  floating  QEMU has not attached its vCPUs for 10 s\n"
        );
        let wide = TextStyle {
            wide: true,
            ..TextStyle::default()
        };
        assert!(table(&COLUMNS, &ROWS, wide).starts_with("team-a/web       3ceda12c  isolated  -\n"));
        assert_eq!(table(&COLUMNS, &ROWS[..0], false), "");
    }

    #[test]
    fn the_columns_that_matter_least_are_cut_first() {
        assert_eq!(
            table(&COLUMNS, &ROWS, at(50)),
            "POD              STATE     WHY\n\
             team-a/web       isolated  -\n\
             team-b/数据库-0  floating  QEMU has not attached …\n"
        );
        assert_eq!(
            table(&COLUMNS, &ROWS, at(30)),
            "POD         STATE     WHY\n\
             team-a/web  isolated  -\n\
             team-b/数…  floating  QEMU ha…\n"
        );
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        for width in 9..120 {
            for line in table(&COLUMNS, &ROWS, at(width)).lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
            for line in properties([("Degraded", ROWS[1][2].to_owned())], at(width)).lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn colours_tell_what_a_text_means_and_take_no_room() {
        let style = TextStyle {
            coloured: true,
            ..at(50)
        };
        let text = table(&COLUMNS, &ROWS, style);
        assert!(
            text.contains("\n team-a/web")
                || text.contains("\nteam-a/web       \x1b[32misolated\x1b[0m  \x1b[2m-\x1b[0m\n")
        );
        assert!(text.contains("\x1b[33mfloating\x1b[0m"), "{text:?}");
        let mut plain = text;
        for code in ["\x1b[0m", "\x1b[2m", "\x1b[32m", "\x1b[33m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, table(&COLUMNS, &ROWS, at(50)));
    }

    #[test]
    fn numbers_stand_below_each_other_and_nothing_is_behind_the_last_text() {
        let columns = [
            column("N", |number: &u32| number.to_string()).right(),
            column("WHY", |_| String::new()).or_nothing(),
        ];
        assert_eq!(table(&columns, &[5, 1200], true), "   N  WHY\n   5\n1200\n");
        assert_eq!(
            properties([("A", String::new()), ("Long", "x\n".to_owned())], false),
            "A:     -\nLong:  x?\n"
        );
    }
}
