//! The screen: what the keys do to it, and how it is drawn. Pure: a model and a [`Screen`] make a buffer.

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::super::view;
use super::rates::Model;
use super::table::{Column, Row, fitting, rows};

const HELP: [&str; 10] = [
    "UTIL%    time that the thread ran, of one CPU",
    "DELAY%   time that it waited for a CPU: the guest's steal",
    "MIGR/S   moves to another CPU",
    "INVOL/S  switches that it did not ask for",
    "FLOAT%   CPU time of everything else of the instance",
    "THROT%   time that the instance was throttled",
    "s r      sort by the next column, reverse",
    "j k      down, up (arrows too)",
    "i        instances only, or with their vCPUs",
    "h q      this help, quit",
];
const KEYS: &str = "q quit  s sort  r reverse  i instances  h help";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Screen {
    /// The column by which rows are sorted.
    pub sort: Column,
    pub reverse: bool,
    pub collapsed: bool,
    pub help: bool,
    pub selected: usize,
    pub coloured: bool,
    /// Why the last sample failed; empty if it did not.
    pub problem: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Stay,
    Quit,
}

impl Screen {
    /// Handles a key; the table has `count` rows and the terminal `width` columns.
    pub(crate) fn key(&mut self, key: KeyEvent, count: usize, width: usize) -> Flow {
        let last = count.saturating_sub(1);
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            // In raw mode Ctrl-C is a key and not a signal.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Flow::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('h' | '?') => self.help = !self.help,
            KeyCode::Char('j') | KeyCode::Down => self.selected = self.selected.saturating_add(1).min(last),
            KeyCode::Char('k') | KeyCode::Up => self.selected = self.selected.min(last).saturating_sub(1),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('i') => self.collapsed = !self.collapsed,
            KeyCode::Char('s') => {
                // Only through the columns that are visible.
                let columns = fitting(width);
                let next = columns
                    .iter()
                    .position(|(column, _)| *column == self.sort)
                    .map_or(0, |place| place + 1);
                self.sort = columns.get(next).map_or(Column::Name, |(column, _)| *column);
            }
            _ => {}
        }
        Flow::Stay
    }

    pub(crate) fn rows(&self, model: &Model) -> Vec<Row> {
        rows(model, self.sort, self.reverse, self.collapsed)
    }

    pub(crate) fn draw(&self, model: &Model, area: Rect, buffer: &mut Buffer) {
        let width = usize::from(area.width);
        let mut line = |row: u16, text: &str, style: Style| {
            if row < area.height {
                buffer.set_stringn(area.x, area.y + row, format!("{text:width$}"), width, style);
            }
        };
        let vcpus: usize = model.instances.iter().map(|instance| instance.vcpus.len()).sum();
        let (order, plain) = (if self.reverse { ", reversed" } else { "" }, Style::new());
        let title = format!(
            "top: {} instances, {vcpus} vCPUs, by {}{order}",
            model.instances.len(),
            self.sort.title()
        );
        line(0, &title, plain.add_modifier(Modifier::BOLD));
        line(1, &view::printable(&self.problem), self.alarm());
        let body = area.height.saturating_sub(4);
        if self.help {
            line(2, "", plain);
            for (row, text) in (3..).zip(HELP) {
                line(row, text, plain);
            }
        } else {
            let columns = fitting(width);
            line(2, &header(&columns), plain.add_modifier(Modifier::REVERSED));
            let rows = self.rows(model);
            let selected = self.selected.min(rows.len().saturating_sub(1));
            // Scrolled so that the selected row is visible.
            let first = (selected + 1).saturating_sub(usize::from(body));
            for (place, (index, row)) in (3..3 + body).zip(rows.iter().enumerate().skip(first)) {
                let mut style = if row.whole { plain } else { self.alarm() };
                if row.instance {
                    style = style.add_modifier(Modifier::BOLD);
                }
                if index == selected {
                    style = style.add_modifier(Modifier::UNDERLINED);
                }
                line(place, &text(row, &columns), style);
            }
        }
        if area.height > 4 {
            line(area.height - 1, KEYS, plain.add_modifier(Modifier::DIM));
        }
    }

    fn alarm(&self) -> Style {
        if self.coloured {
            Style::new().fg(Color::Red)
        } else {
            Style::new()
        }
    }
}

/// A cell of that width: numbers are aligned to the right, longer text is cut and marked.
fn cell(text: &str, column: Column, width: usize) -> String {
    if text.chars().count() > width {
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        return kept + "~";
    }
    if column.is_number() {
        format!("{text:>width$}")
    } else {
        format!("{text:width$}")
    }
}

fn header(columns: &[(Column, usize)]) -> String {
    let cells: Vec<_> = columns
        .iter()
        .map(|(column, width)| cell(column.title(), *column, *width))
        .collect();
    cells.join(" ")
}

fn text(row: &Row, columns: &[(Column, usize)]) -> String {
    let cells: Vec<_> = columns
        .iter()
        .map(|(column, width)| cell(row.cell(*column), *column, *width))
        .collect();
    cells.join(" ")
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::table::testing::model;
    use super::*;

    fn drawn(screen: &Screen, width: u16, height: u16) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| screen.draw(&model(), frame.area(), frame.buffer_mut()))
            .unwrap();
        terminal.backend().clone()
    }

    fn press(screen: &mut Screen, keys: &str) {
        for key in keys.chars() {
            assert_eq!(screen.key(KeyEvent::from(KeyCode::Char(key)), 4, 80), Flow::Stay);
        }
    }

    #[test]
    fn a_narrow_terminal_has_what_matters_most() {
        assert_snapshot!(drawn(&Screen::default(), 40, 9), @r#"
        "top: 2 instances, 2 vCPUs, by INSTANCE  "
        "                                        "
        "INSTANCE          CPUS      UTIL% DELAY%"
        "3ceda12c-3ee9-40~ 4-5       140.0    0.5"
        "  vcpu 0          4          40.0    0.5"
        "  vcpu 1          5         100.0    0.0"
        "b9e4f71c-64a5-4f~ 2             -      -"
        "                                        "
        "q quit  s sort  r reverse  i instances  "
        "#);
    }

    #[test]
    fn eighty_columns_have_everything() {
        assert_snapshot!(drawn(&Screen::default(), 80, 9), @r#"
        "top: 2 instances, 2 vCPUs, by INSTANCE                                          "
        "                                                                                "
        "INSTANCE          STATE      CPUS      UTIL% DELAY% MIGR/S INVOL/S FLOAT% THROT%"
        "3ceda12c-3ee9-40~ isolated   4-5       140.0    0.5      -     1.0   12.3    0.0"
        "  vcpu 0                     4          40.0    0.5      -     1.0              "
        "  vcpu 1                     5         100.0    0.0      -     0.0              "
        "b9e4f71c-64a5-4f~ floating   2             -      -      -       -   99.0      -"
        "                                                                                "
        "q quit  s sort  r reverse  i instances  h help                                  "
        "#);
    }

    #[test]
    fn a_wide_terminal_has_the_whole_uid() {
        let mut screen = Screen {
            problem: "steliad does not answer\x1b[2J".to_owned(),
            ..Screen::default()
        };
        press(&mut screen, "sssr");
        assert_snapshot!(drawn(&screen, 120, 9), @r#"
        "top: 2 instances, 2 vCPUs, by UTIL%, reversed                                                                           "
        "steliad does not answer?[2J                                                                                             "
        "INSTANCE                             STATE      CPUS      UTIL% DELAY% MIGR/S INVOL/S FLOAT% THROT%                     "
        "3ceda12c-3ee9-40fa-9f42-61428fe654a6 isolated   4-5       140.0    0.5      -     1.0   12.3    0.0                     "
        "  vcpu 0                                        4          40.0    0.5      -     1.0                                   "
        "  vcpu 1                                        5         100.0    0.0      -     0.0                                   "
        "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5 floating   2             -      -      -       -   99.0      -                     "
        "                                                                                                                        "
        "q quit  s sort  r reverse  i instances  h help                                                                          "
        "#);
    }

    #[test]
    fn the_help_explains_the_columns_and_keys() {
        let mut screen = Screen::default();
        press(&mut screen, "h");
        assert_snapshot!(drawn(&screen, 60, 15), @r#"
        "top: 2 instances, 2 vCPUs, by INSTANCE                      "
        "                                                            "
        "                                                            "
        "UTIL%    time that the thread ran, of one CPU               "
        "DELAY%   time that it waited for a CPU: the guest's steal   "
        "MIGR/S   moves to another CPU                               "
        "INVOL/S  switches that it did not ask for                   "
        "FLOAT%   CPU time of everything else of the instance        "
        "THROT%   time that the instance was throttled               "
        "s r      sort by the next column, reverse                   "
        "j k      down, up (arrows too)                              "
        "i        instances only, or with their vCPUs                "
        "h q      this help, quit                                    "
        "                                                            "
        "q quit  s sort  r reverse  i instances  h help              "
        "#);
        press(&mut screen, "h");
        assert_eq!(screen, Screen::default());
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (5, 3), (20, 4), (200, 2)] {
            for help in [false, true] {
                drawn(
                    &Screen {
                        help,
                        ..Screen::default()
                    },
                    width,
                    height,
                );
            }
        }
    }

    #[test]
    fn the_marked_row_is_always_seen() {
        let mut screen = Screen::default();
        press(&mut screen, "jjjjjj");
        assert_eq!(screen.selected, 3);
        // Room for two rows.
        let text = drawn(&screen, 40, 6).to_string();
        assert!(text.contains("b9e4f71c") && !text.contains("3ceda12c"), "{text}");
        press(&mut screen, "kkkkkk");
        assert_eq!(screen.selected, 0);
    }

    #[test]
    fn keys_sort_reverse_and_collapse_and_the_last_column_is_before_the_first() {
        let mut screen = Screen::default();
        press(&mut screen, "s");
        assert_eq!(screen.sort, Column::State);
        press(&mut screen, "ssssssss");
        assert_eq!(screen.sort, Column::Name);
        press(&mut screen, "ri");
        assert!(screen.reverse && screen.collapsed && screen.rows(&model()).len() == 2);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(interrupt, 4, 80), Flow::Quit);
        assert_eq!(screen.key(KeyEvent::from(KeyCode::Char('q')), 4, 80), Flow::Quit);
    }
}
