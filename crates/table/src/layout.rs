//! Tables: columns are declared once, and on a terminal they are laid out for its width and coloured by meaning: sentences are
//! wrapped, names are shortened in the middle, and everything else is cut at its end. A [`Grid`] is such a table before it is text.

use std::fmt::Display;
use std::io::IsTerminal;

use unicode_width::UnicodeWidthStr;

use crate::fit::{cut, shorten, wrap};
use crate::printable;
use crate::shrink::{COLUMN_GAP, Shown, fit_columns};
use crate::terminal::coloured;

/// How text is laid out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextStyle {
    /// Whether header lines are printed.
    pub legend: bool,
    /// Whether the columns of `-o wide` are shown. Then no column is cut or wrapped: a line may be longer than `width`.
    pub wide: bool,
    /// Columns within which lines are laid out; `None`: nothing is cut or wrapped.
    pub width: Option<usize>,
    /// Whether it is printed on a terminal, whatever the width.
    pub is_terminal: bool,
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
            is_terminal,
            coloured: coloured(),
        }
    }

    /// Whether hints and counts are wanted besides the data.
    pub fn is_for_people(self) -> bool {
        self.is_terminal || self.width.is_some()
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
    pub fn paint(self, text: &str, style: TextStyle) -> String {
        let code = match self {
            Self::Good => "32",
            Self::Attention => "33",
            Self::Broken => "31",
            Self::Absent => "2",
            Self::Plain => return text.to_owned(),
        };
        if style.coloured {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// What happens to a text that is wider than its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    Cut,
    /// The middle is left out.
    Shorten,
    /// It continues on the next line.
    Wrap,
}

/// How a column is laid out, whatever its rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub heading: &'static str,
    pub right: bool,
    pub wide: bool,
    pub yields: u8,
    pub fit: Fit,
    /// The width below which it is not cut while another column can become narrower; 0: as `fit` has it.
    pub least: usize,
    /// What stands for an empty value.
    pub empty: &'static str,
}

/// A column of a table with rows of type `T`.
pub struct Column<T> {
    layout: Layout,
    cell: fn(&T) -> String,
    meaning: fn(&T) -> Meaning,
}

/// A column that is aligned to the left. No cell is empty, so that awk finds each column.
pub const fn column<T>(heading: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column {
        layout: Layout {
            heading,
            right: false,
            wide: false,
            yields: 0,
            fit: Fit::Cut,
            least: 0,
            empty: "-",
        },
        cell,
        meaning: |_| Meaning::Plain,
    }
}

impl<T> Column<T> {
    /// Its heading.
    pub const fn heading(&self) -> &'static str {
        self.layout.heading
    }

    /// Aligned to the right.
    pub const fn right(mut self) -> Self {
        self.layout.right = true;
        self
    }

    /// Shown with `-o wide` only.
    pub const fn wide(mut self) -> Self {
        self.layout.wide = true;
        self
    }

    /// A column of sentences: on a narrow terminal they are wrapped and lose nothing.
    pub const fn wraps(mut self) -> Self {
        self.layout.fit = Fit::Wrap;
        self
    }

    /// A column of names whose ends tell them apart: on a narrow terminal their middle is left out.
    pub const fn shortens(mut self) -> Self {
        self.layout.fit = Fit::Shorten;
        self
    }

    /// On a narrow terminal the columns with the highest rank are cut first, and those without one last.
    pub const fn yields(mut self, rank: u8) -> Self {
        self.layout.yields = rank;
        self
    }

    /// No value of the column is cut, and no word of a sentence is broken, while another column can become narrower.
    pub const fn whole(self) -> Self {
        self.at_least(usize::MAX)
    }

    /// It is not cut below this width while another column can become narrower.
    pub const fn at_least(mut self, width: usize) -> Self {
        self.layout.least = width;
        self
    }

    pub const fn means(mut self, meaning: fn(&T) -> Meaning) -> Self {
        self.meaning = meaning;
        self
    }

    /// For the last column only: nothing is printed for an empty value.
    pub const fn or_nothing(mut self) -> Self {
        self.layout.empty = "";
        self
    }

    fn of(&self, row: &T) -> Cell {
        match (self.cell)(row) {
            text if text.is_empty() => Cell {
                text: self.layout.empty.to_owned(),
                meaning: Meaning::Absent,
            },
            text => Cell {
                text: printable(&text),
                meaning: (self.meaning)(row),
            },
        }
    }
}

/// A value of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Without control characters.
    pub text: String,
    pub meaning: Meaning,
}

/// A table whose cells are made, for text and for any other form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    columns: Vec<Layout>,
    /// Each with a cell for every column.
    pub rows: Vec<Vec<Cell>>,
}

impl Grid {
    pub fn of<'a, T: 'a>(columns: &[Column<T>], rows: impl IntoIterator<Item = &'a T>) -> Self {
        let rows = rows.into_iter();
        Self {
            columns: columns.iter().map(|column| column.layout).collect(),
            rows: rows
                .map(|row| columns.iter().map(|column| column.of(row)).collect())
                .collect(),
        }
    }

    /// The heading of each column, and whether the column is aligned to the right.
    pub fn headings(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.columns.iter().map(|column| (column.heading, column.right))
    }

    /// The rows below the columns' headings; without rows only the headings are printed.
    pub fn text(&self, style: impl Into<TextStyle>) -> String {
        let style: TextStyle = style.into();
        let columns = (0..).zip(&self.columns).filter(|(_, one)| style.wide || !one.wide);
        let shown = columns.map(|(at, layout)| {
            let values = self.rows.iter().filter_map(|cells| cells.get(at));
            Shown::new(at, *layout, values.map(|cell| cell.text.as_str()), style.legend)
        });
        let shown = fit_columns(shown.collect(), style);
        let mut text = String::new();
        if style.legend {
            let heading = |column: &Shown| wrap(column.layout.heading, column.width);
            row(&mut text, &shown, |column| (heading(column), Meaning::Plain), style);
        }
        for cells in &self.rows {
            let cell = |column: &Shown| match cells.get(column.at) {
                Some(cell) => (lines(&cell.text, column), cell.meaning),
                None => (Vec::new(), Meaning::Absent),
            };
            row(&mut text, &shown, cell, style);
        }
        text
    }
}

/// The rows below the columns' headings; without rows only the headings are printed.
pub fn table<'a, T: 'a>(
    columns: &[Column<T>],
    rows: impl IntoIterator<Item = &'a T>,
    style: impl Into<TextStyle>,
) -> String {
    Grid::of(columns, rows).text(style)
}

/// The lines of a value in its column.
fn lines(text: &str, column: &Shown) -> Vec<String> {
    match column.layout.fit {
        Fit::Cut => vec![cut(text, column.width)],
        Fit::Shorten => vec![shorten(text, column.width)],
        Fit::Wrap => wrap(text, column.width),
    }
}

pub(crate) fn longest_word(text: &str) -> usize {
    text.split(' ').map(UnicodeWidthStr::width).max().unwrap_or(0)
}

/// A row, on as many lines as its longest sentence has.
fn row(out: &mut String, shown: &[Shown], cell: impl Fn(&Shown) -> (Vec<String>, Meaning), style: TextStyle) {
    let cells: Vec<(Vec<String>, Meaning)> = shown.iter().map(cell).collect();
    for at in 0..cells.iter().map(|(lines, _)| lines.len()).max().unwrap_or(0) {
        let mut pending = 0;
        for (column, (lines, meaning)) in shown.iter().zip(&cells) {
            let text = lines.get(at).map_or("", String::as_str);
            let blanks = column.width.saturating_sub(text.width());
            let (before, after) = if column.layout.right { (blanks, 0) } else { (0, blanks) };
            pending += before;
            // Nothing stands behind the last text.
            if !text.is_empty() {
                out.extend(std::iter::repeat_n(' ', pending));
                *out += &meaning.paint(text, style);
                pending = 0;
            }
            pending += after + COLUMN_GAP;
        }
        out.push('\n');
    }
}

/// The paragraph on lines of the style's width, each with a newline.
pub fn paragraph(text: &str, style: impl Into<TextStyle>) -> String {
    let width = style.into().width.unwrap_or(usize::MAX);
    let lines = text.lines().flat_map(|line| wrap(line, width));
    lines.map(|line| line + "\n").collect()
}

/// `Name: value`, one per line.
pub fn properties<N: Display>(rows: impl IntoIterator<Item = (N, String)>, style: impl Into<TextStyle>) -> String {
    const COLUMNS: [Column<(String, String)>; 2] = [
        column("", |(name, _)| name.clone()),
        column("", |(_, value): &(String, String)| value.clone()).wraps(),
    ];
    let rows = rows.into_iter().map(|(name, value)| (format!("{name}:"), value));
    let style = TextStyle {
        legend: false,
        wide: false,
        ..style.into()
    };
    table(&COLUMNS, &rows.collect::<Vec<_>>(), style)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Row = [&'static str; 3];

    const COLUMNS: [Column<Row>; 4] = [
        column("POD", |[pod, ..]: &Row| (*pod).to_owned()).yields(1),
        column("UID", |_| "3ceda12c".to_owned()).wide(),
        column("STATE", |[_, state, _]: &Row| (*state).to_owned()).means(|[_, state, _]| {
            if *state == "isolated" {
                Meaning::Good
            } else {
                Meaning::Attention
            }
        }),
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
    fn a_heading_of_several_words_is_wrapped_before_a_name_is_shortened() {
        let columns = [
            column("POD", |[pod, ..]: &Row| (*pod).to_owned()).yields(1).shortens(),
            column("SINCE ISOLATED", |_: &Row| "7".to_owned()).right(),
            column("THREADS LEFT", |_: &Row| "0".to_owned()).right(),
        ];
        let rows = [["shop/virt-launcher-vm-002", "", ""]];
        assert_eq!(
            table(&columns, &rows, at(44)),
            "POD                           SINCE  THREADS\n\
             \x20                          ISOLATED     LEFT\n\
             shop/virt-launcher-vm-002         7        0\n"
        );
        assert!(
            table(&columns, &rows, at(60)).starts_with("POD                        SINCE ISOLATED  THREADS LEFT\n")
        );
        assert!(table(&columns, &rows, at(30)).contains("shop/"));
    }

    #[test]
    fn in_the_wide_form_columns_keep_their_width() {
        let wide = |width| TextStyle {
            wide: true,
            width,
            ..at(0)
        };
        let whole = table(&WRAPPED, &ROWS, wide(None));
        assert_eq!(table(&WRAPPED, &ROWS, wide(Some(20))), whole);
        let short = properties([("Degraded", ROWS[1][2].to_owned())], wide(Some(30)));
        assert!(short.lines().all(|line| line.width() <= 30), "{short}");
    }

    const WRAPPED: [Column<Row>; 3] = [
        column("POD", |[pod, ..]: &Row| (*pod).to_owned()).yields(1).shortens(),
        column("STATE", |[_, state, _]: &Row| (*state).to_owned()),
        column("WHY", |[.., why]: &Row| (*why).to_owned()).wraps(),
    ];

    #[test]
    fn sentences_are_wrapped_before_a_name_is_shortened_and_lose_nothing() {
        assert_eq!(
            table(&WRAPPED, &ROWS, at(60)),
            "POD              STATE     WHY\n\
             team-a/web       isolated  -\n\
             team-b/数据库-0  floating  QEMU has not attached its vCPUs\n\
             \x20                          for 10 s\n"
        );
        let long = [["team-b/virt-launcher-database-0-x7k2p", "floating", ROWS[1][2]]];
        assert_eq!(
            table(&WRAPPED, &long, at(54)),
            "POD                 STATE     WHY\n\
             team-b/vi…-0-x7k2p  floating  QEMU has not attached\n\
             \x20                             its vCPUs for 10 s\n"
        );
        // Whatever the width, every word is there as long as the longest one fits.
        for width in 45..120 {
            let text = table(&WRAPPED, &ROWS, at(width));
            for word in ROWS[1][2].split(' ') {
                assert!(text.contains(word), "{width}: {text}");
            }
        }
    }

    #[test]
    fn a_long_word_is_not_broken_while_another_sentence_can_become_narrower() {
        let columns = [
            column("REASON", |[reason, ..]: &Row| (*reason).to_owned()).wraps(),
            column("SUCH AS", |[.., examples]: &Row| (*examples).to_owned()).wraps(),
        ];
        let rows = [[
            "taint node.kubernetes.io/unreachable:NoSchedule is not tolerated",
            "",
            "worker-000, worker-050 and 30 other nodes of this zone",
        ]];
        let text = table(&columns, &rows, at(72));
        assert!(text.contains("node.kubernetes.io/unreachable:NoSchedule "), "{text}");
        assert!(text.lines().all(|line| line.width() <= 72), "{text}");
        // Where there is no room for both, every line still fits.
        let text = table(&columns, &rows, at(50));
        assert!(text.lines().all(|line| line.width() <= 50), "{text}");
    }

    #[test]
    fn a_whole_column_is_not_cut_while_a_name_can_be_shortened() {
        let columns = [
            column("NODE", |[node, ..]: &Row| (*node).to_owned())
                .yields(1)
                .shortens(),
            column("STATE", |[_, state, _]: &Row| (*state).to_owned()).whole(),
            column("FREE CORES", |[.., cores]: &Row| (*cores).to_owned())
                .wraps()
                .whole(),
        ];
        let rows = [["kv-fra1-r00-u02 +12", "node-not-ready", "0:14 1:17 2:9"]];
        assert_eq!(
            table(&columns, &rows, at(34)),
            "NODE         STATE           FREE\n\
             \x20                            CORES\n\
             kv-fr…2 +12  node-not-ready  0:14\n\
             \x20                            1:17\n\
             \x20                            2:9\n"
        );
    }

    #[test]
    fn a_word_that_is_wider_than_a_line_is_broken() {
        assert_eq!(wrap("8-15,72-79,10", 8), ["8-15,", "72-79,10"]);
        assert_eq!(
            wrap("taint node.kubernetes.io/unreachable:NoExecute", 27),
            ["taint", "node.kubernetes.io/", "unreachable:NoExecute"]
        );
        assert_eq!(wrap("write /sys/fs/cgroup", 8), ["write", "/sys/fs/", "cgroup"]);
        assert_eq!(wrap("", 8), [""]);
        assert_eq!(wrap("waits for 46 s, then", 12), ["waits for", "46 s, then"]);
        assert_eq!(wrap("数据库", 4), ["数据", "库"]);
    }

    #[test]
    fn a_name_keeps_both_ends() {
        assert_eq!(shorten("team-a/web", 10), "team-a/web");
        assert_eq!(shorten("node-0371.eu-west-1.example", 16), "node-0371.eu-we…");
        assert_eq!(
            shorten("kubevirt/virt-launcher-database-0-x7k2p", 16),
            "kubevirt…0-x7k2p"
        );
        assert_eq!(
            [0, 1, 2, 3].map(|width| shorten("abcdef", width)),
            ["", "…", "a…", "a…f"]
        );
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        for width in 9..120 {
            for line in table(&COLUMNS, &ROWS, at(width)).lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
            for line in table(&WRAPPED, &ROWS, at(width)).lines() {
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
