//! The screen: what the keys do to it, and how it is drawn. Pure: a model and a [`Screen`] make a buffer.

use std::collections::BTreeMap;

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::live_rows::{COLUMNS, Column, Row, fitting, names_width, needs_states, rows};
use crate::shared::kernel::rates::Model;
use crate::shared::output::{self, Meaning};

const HELP: [&str; 15] = [
    "UTIL%    time that the thread ran, of one CPU",
    "DELAY%   time that it waited for a CPU: the guest's steal",
    "BUSY     UTIL% of the last samples, per thread",
    "MIGR/S   moves to another CPU",
    "INVOL/S  switches that it did not ask for",
    "FLOAT%   CPU time of everything else of the instance",
    "THROT%   time that the instance was throttled",
    "IRQ/S    device interrupts on its CPUs: 0 is the promise",
    "LLC, MEM cache used, memory traffic, where resctrl counts",
    "REASON   what disturbs it; red: isolation is degraded",
    "s r      sort by the next column, reverse",
    "/        show only names and states with a text; Esc: all",
    "j k      down, up (arrows too)",
    "i        instances only, or with their vCPUs",
    "h q      this help, quit",
];
const KEYS: &str = "q quit  s sort  r reverse  i instances  / filter  h help";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Screen {
    /// The place of the column by which rows are sorted; `None`: what is wrong is first.
    pub sort: Option<usize>,
    /// Only instances with this in their names or states are shown.
    pub filter: String,
    /// Whether keys are the filter's text.
    pub editing: bool,
    pub reverse: bool,
    pub collapsed: bool,
    pub help: bool,
    pub selected: usize,
    pub coloured: bool,
    /// Whether the locale has no characters but ASCII.
    pub ascii: bool,
    /// Why the last sample failed; empty if it did not.
    pub problem: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Stay,
    Quit,
}

impl Screen {
    /// Handles a key; the terminal has `width` columns.
    pub(crate) fn key(&mut self, key: KeyEvent, model: &Model, width: usize) -> Flow {
        let last = self.rows(model).len().saturating_sub(1);
        if self.editing && !key.modifiers.contains(KeyModifiers::CONTROL) {
            self.edit(key.code);
            return Flow::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            // In raw mode Ctrl-C is a key and not a signal.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Flow::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => {
                self.filter.clear();
                self.editing = true;
            }
            KeyCode::Char('h' | '?') => self.help = !self.help,
            KeyCode::Char('j') | KeyCode::Down => self.selected = self.selected.saturating_add(1).min(last),
            KeyCode::Char('k') | KeyCode::Up => self.selected = self.selected.min(last).saturating_sub(1),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('i') => self.collapsed = !self.collapsed,
            KeyCode::Char('s') => {
                // Only through the columns that are visible.
                let columns = fitting(width, names_width(model), model.has_caches(), needs_states(model));
                let place = columns.iter().position(|(column, _)| Some(*column) == self.sort);
                let next = place.map_or(0, |place| place + 1);
                self.sort = columns.get(next).map(|(column, _)| *column);
            }
            _ => {}
        }
        Flow::Stay
    }

    /// Handles a key of the filter's text.
    fn edit(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.editing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.editing = false;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(char) => self.filter.push(char),
            _ => {}
        }
        self.selected = 0;
    }

    pub(crate) fn rows<'a>(&self, model: &'a Model) -> Vec<Row<'a>> {
        let mut rows = rows(model, self.sort, self.reverse, self.collapsed);
        rows.retain(|row| {
            let instance = row.instance;
            let degraded = if instance.whole { "" } else { "degraded" };
            let name = instance.pod.to_string();
            let texts = [name.as_str(), instance.state.as_str(), degraded];
            self.filter.is_empty() || texts.into_iter().any(|text| text.contains(&self.filter))
        });
        rows
    }

    /// How many there are, in which states, and what is shown of them.
    fn title(&self, model: &Model) -> String {
        let (count, states) = totals(model);
        let by = self.sort.map_or("trouble", |column| COLUMNS[column].title);
        let order = if self.reverse { ", reversed" } else { "" };
        let rows = self.rows(model).len();
        let row = self.selected.saturating_add(1).min(rows);
        let filter = match (self.editing, self.filter.is_empty()) {
            (false, true) => String::new(),
            (editing, _) => format!("; /{}{}", self.filter, if editing { "_" } else { "" }),
        };
        format!("top: {count}, by {by}{order}; {states}; row {row} of {rows}{filter}")
    }

    pub(crate) fn draw(&self, model: &Model, area: Rect, buffer: &mut Buffer) {
        let width = usize::from(area.width);
        let mut line = |row: u16, text: &str, style: Style| {
            if row < area.height {
                // A cell has no room for more dots.
                let plain = self.ascii.then(|| output::to_ascii(&text.replace('…', "~")));
                let text = plain.as_deref().unwrap_or(text);
                buffer.set_stringn(area.x, area.y + row, format!("{text:width$}"), width, style);
            }
        };
        let (title, plain) = (output::printable(&self.title(model)), Style::new());
        line(0, &title, plain.add_modifier(Modifier::BOLD));
        line(1, &output::printable(&self.problem), self.style(Meaning::Broken));
        let body = area.height.saturating_sub(4);
        if self.help {
            line(2, "", plain);
            for (row, text) in (3..).zip(HELP) {
                line(row, text, plain);
            }
        } else {
            let columns = fitting(width, names_width(model), model.has_caches(), needs_states(model));
            let header = line_of(&columns, |column| column.title.to_owned());
            line(2, &header, plain.add_modifier(Modifier::REVERSED));
            let rows = self.rows(model);
            let selected = self.selected.min(rows.len().saturating_sub(1));
            // Scrolled so that the selected row is visible.
            let first = (selected + 1).saturating_sub(usize::from(body));
            // The whole reason of the selected row, which its cell may have to cut.
            let reason = rows.get(selected).filter(|_| self.problem.is_empty());
            if let Some((row, reason)) = reason.and_then(|row| Some((row, row.reason()?))) {
                line(
                    1,
                    &output::cut(&output::printable(reason), width),
                    self.style(row.meaning()),
                );
            }
            for (place, (index, row)) in (3..3 + body).zip(rows.iter().enumerate().skip(first)) {
                let mut style = self.style(row.meaning());
                if row.vcpu.is_none() {
                    style = style.add_modifier(Modifier::BOLD);
                }
                if index == selected {
                    style = style.add_modifier(Modifier::UNDERLINED);
                }
                line(place, &line_of(&columns, |column| column.cell(*row)), style);
            }
        }
        if area.height > 4 {
            line(area.height - 1, KEYS, plain.add_modifier(Modifier::DIM));
        }
    }

    fn style(&self, meaning: Meaning) -> Style {
        match meaning {
            Meaning::Broken if self.coloured => Style::new().fg(Color::Red),
            Meaning::Attention if self.coloured => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        }
    }
}

/// How many instances and vCPUs there are, and in which states.
fn totals(model: &Model) -> (String, String) {
    let vcpus: usize = model.instances.iter().map(|instance| instance.vcpus.len()).sum();
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for instance in &model.instances {
        *states.entry(&instance.state).or_default() += 1;
    }
    let states = states.into_iter().map(|(state, count)| format!("{count} {state}"));
    let degraded = model.instances.iter().filter(|instance| !instance.whole).count();
    let degraded = (degraded > 0).then(|| format!("{degraded} degraded"));
    let states: Vec<String> = states.chain(degraded).collect();
    (
        format!("{} instances, {vcpus} vCPUs", model.instances.len()),
        states.join(", "),
    )
}

/// A cell of that width: numbers are aligned to the right, longer names lose their middle, other text ends in an ellipsis.
fn cell(text: &str, column: &Column, width: usize) -> String {
    let text = if column.is_name() {
        output::shorten(text, width)
    } else {
        output::cut(text, width)
    };
    if column.is_number() {
        format!("{text:>width$}")
    } else {
        format!("{text:width$}")
    }
}

/// The cells of a line, one blank apart.
fn line_of(columns: &[(usize, usize)], text: impl Fn(&Column) -> String) -> String {
    let columns = columns.iter().map(|(place, width)| (&COLUMNS[*place], *width));
    let cells: Vec<_> = columns
        .map(|(column, width)| cell(&text(column), column, width))
        .collect();
    cells.join(" ")
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::live_rows::testing::{disturbed, model};
    use super::*;
    use crate::tests::fixtures::says;

    fn drawn(screen: &Screen, width: u16, height: u16) -> TestBackend {
        drawn_of(&model(), screen, width, height)
    }

    fn drawn_of(model: &Model, screen: &Screen, width: u16, height: u16) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| screen.draw(model, frame.area(), frame.buffer_mut()))
            .unwrap();
        terminal.backend().clone()
    }

    fn by_name() -> Screen {
        Screen {
            sort: Some(0),
            ..Screen::default()
        }
    }

    fn press(screen: &mut Screen, keys: &str) {
        for key in keys.chars() {
            assert_eq!(
                screen.key(KeyEvent::from(KeyCode::Char(key)), &model(), 200),
                Flow::Stay
            );
        }
    }

    #[test]
    fn eighty_columns_have_the_reason_in_words() {
        assert_snapshot!(drawn_of(&disturbed(), &by_name(), 80, 9), @r#"
        "top: 2 instances, 2 vCPUs, by INSTANCE; 1 floating, 1 isolated, 1 degraded; row "
        "vCPU 1 waits 12 % for a CPU, preempted 30/s                                     "
        "INSTANCE                       CPUS      UTIL% DELAY% REASON                    "
        "kubevirt/virt-l…-x7k2p-primary 4-5       140.0    0.5 vCPU 1 waits 12 % for a C…"
        "  vcpu 0                       4          40.0    0.5                           "
        "  vcpu 1                       5         100.0    0.0 waits 12 % for a CPU, pre…"
        "kubevirt/virt-launcher-web     2             -      - degraded: kubelet gave CP…"
        "                                                                                "
        "q quit  s sort  r reverse  i instances  / filter  h help                        "
        "#);
    }

    #[test]
    fn names_of_one_beginning_differ_at_eighty_columns() {
        let mut model = disturbed();
        for (instance, end) in model.instances.iter_mut().zip(["003-4hvbp", "007-kxdr7"]) {
            instance.pod.pod_namespace = "kubevirt-tenants".to_owned();
            instance.pod.pod_name = format!("virt-launcher-customer-database-{end}");
        }
        let text = drawn_of(&model, &by_name(), 80, 9).to_string();
        says(&text, &["se-003-4hvbp ", "se-007-kxdr7 "]);
    }

    #[test]
    fn a_wide_terminal_has_the_whole_uid() {
        let mut screen = Screen {
            problem: "steliad does not answer\x1b[2J".to_owned(),
            ..by_name()
        };
        press(&mut screen, "sssr");
        assert_snapshot!(drawn(&screen, 120, 9), @r#"
        "top: 2 instances, 2 vCPUs, by UTIL%, reversed; 1 floating, 1 isolated, 1 degraded; row 1 of 4                           "
        "steliad does not answer?[2J                                                                                             "
        "INSTANCE                             STATE      CPUS      UTIL% DELAY% BUSY        IRQ/S REASON                         "
        "3ceda12c-3ee9-40fa-9f42-61428fe654a6 isolated   4-5       140.0    0.5               0.0                                "
        "  vcpu 0                                        4          40.0    0.5                                                  "
        "  vcpu 1                                        5         100.0    0.0                                                  "
        "b9e4f71c-64a5-4f8d-8574-41363cbaf8e5 floating   2             -      -                 - degraded: kubelet gave CPU 2 a…"
        "                                                                                                                        "
        "q quit  s sort  r reverse  i instances  / filter  h help                                                                "
        "#);
    }

    #[test]
    fn two_hundred_columns_have_everything() {
        assert_snapshot!(drawn_of(&disturbed(), &by_name(), 200, 9), @r#"
        "top: 2 instances, 2 vCPUs, by INSTANCE; 1 floating, 1 isolated, 1 degraded; row 1 of 4                                                                                                                  "
        "vCPU 1 waits 12 % for a CPU, preempted 30/s                                                                                                                                                             "
        "INSTANCE                                        STATE      CPUS      UTIL% DELAY% BUSY       MIGR/S INVOL/S FLOAT% THROT%  IRQ/S REASON                                                                 "
        "kubevirt/virt-launcher-database-0-x7k2p-primary isolated   4-5       140.0    0.5       ▁▃▅▆      -     1.0   12.3    0.0    0.0 vCPU 1 waits 12 % for a CPU, preempted 30/s                            "
        "  vcpu 0                                                   4          40.0    0.5       ▁▁▁▄      -     1.0                                                                                             "
        "  vcpu 1                                                   5         100.0    0.0        ▅██      -     0.0                      waits 12 % for a CPU, preempted 30/s                                   "
        "kubevirt/virt-launcher-web                      floating   2             -      -                 -       -   99.0      -      - degraded: kubelet gave CPU 2 away; floats: its vCPUs are being pinned  "
        "                                                                                                                                                                                                        "
        "q quit  s sort  r reverse  i instances  / filter  h help                                                                                                                                                "
        "#);
    }

    #[test]
    fn above_the_table_is_the_selected_rows_whole_reason_unless_the_sample_failed() {
        let mut screen = Screen {
            selected: 3,
            ..by_name()
        };
        let above = |screen: &Screen| {
            let text = drawn_of(&disturbed(), screen, 80, 9).to_string();
            text.lines().nth(1).unwrap().trim_matches(['"', ' ']).to_owned()
        };
        assert_eq!(
            above(&screen),
            "degraded: kubelet gave CPU 2 away; floats: its vCPUs are being pinned"
        );
        screen.selected = 1;
        assert_eq!(above(&screen), "");
        screen.selected = 3;
        screen.problem = "steliad does not answer".to_owned();
        assert_eq!(above(&screen), screen.problem);
    }

    #[test]
    fn a_row_is_red_where_isolation_is_degraded_and_yellow_where_something_disturbs_it() {
        let coloured = Screen {
            coloured: true,
            ..by_name()
        };
        let of = |screen: &Screen| {
            let terminal = drawn_of(&disturbed(), screen, 80, 9);
            [3, 4, 5, 6].map(|row| terminal.buffer()[(0, row)].fg)
        };
        assert_eq!(of(&coloured), [Color::Yellow, Color::Reset, Color::Yellow, Color::Red]);
        assert_eq!(of(&by_name()), [Color::Reset; 4]);
    }

    #[test]
    fn a_filter_leaves_the_instances_with_its_text_until_esc() {
        let mut screen = Screen::default();
        let shown = |screen: &Screen| {
            let mut names: Vec<String> = screen
                .rows(&model())
                .iter()
                .map(|row| row.instance.pod.to_string().chars().take(4).collect())
                .collect();
            names.dedup();
            names.join(" ")
        };
        assert_eq!(shown(&screen), "b9e4 3ced");
        press(&mut screen, "/3ceq");
        assert!(shown(&screen).is_empty() && screen.title(&model()).ends_with("; row 0 of 0; /3ceq_"));
        screen.key(KeyEvent::from(KeyCode::Backspace), &model(), 80);
        screen.key(KeyEvent::from(KeyCode::Enter), &model(), 80);
        assert_eq!(shown(&screen), "3ced");
        assert!(
            screen.title(&model()).ends_with("; row 1 of 3; /3ce"),
            "{}",
            screen.title(&model())
        );
        press(&mut screen, "/degraded");
        assert_eq!(shown(&screen), "b9e4");
        screen.key(KeyEvent::from(KeyCode::Esc), &model(), 80);
        assert_eq!(screen, Screen::default());
    }

    #[test]
    fn no_size_is_too_small() {
        for (width, height) in [(1, 1), (5, 3), (20, 4), (200, 2)] {
            for help in [false, true] {
                drawn(&Screen { help, ..by_name() }, width, height);
            }
        }
    }

    #[test]
    fn the_marked_row_is_always_seen() {
        let mut screen = by_name();
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
        let mut screen = by_name();
        press(&mut screen, "s");
        assert_eq!(COLUMNS[screen.sort.unwrap()].title, "STATE");
        press(&mut screen, "sssssssssss");
        assert_eq!(screen.sort, None, "what is wrong first");
        press(&mut screen, "s");
        assert_eq!(COLUMNS[screen.sort.unwrap()].title, "INSTANCE");
        press(&mut screen, "ri");
        assert!(screen.reverse && screen.collapsed && screen.rows(&model()).len() == 2);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(interrupt, &model(), 80), Flow::Quit);
        assert_eq!(screen.key(KeyEvent::from(KeyCode::Char('q')), &model(), 80), Flow::Quit);
    }
}
