//! The screen: what the keys do to it, and how it is drawn. Pure: a model and a [`Screen`] make a buffer.

use std::collections::BTreeSet;

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{List, ListItem, ListState, Paragraph, StatefulWidget, Widget};

use super::{Row, SORTS, columns, heading, rows};
use crate::shared::kernel::rates::Model;
use crate::shared::output::{Meaning, TextStyle, cut, paragraph, printable, table};
use crate::view::list::node_lines;

const HELP: [&str; 9] = [
    "UTIL%    CPU time of the vCPUs, percent of one CPU",
    "WAIT%    time that they waited for a CPU: the guest's steal",
    "IRQ/S    device interrupts on the VM's CPUs: should be 0",
    "NOTE     what is wrong; below the table in words, of the selected row",
    "",
    "Up Down  select; also j k, Page Up, Page Down",
    "Enter    show or hide the vCPUs of the selected VM",
    "s        sort by trouble, UTIL%, WAIT%, IRQ/S or VM",
    "h q      this help, quit; steliactl top -o wide has more columns",
];
const KEYS: &str = "Enter vCPUs  s sort  h help  q quit";
/// The node's problems that are shown above the table.
const MAX_PROBLEMS: usize = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Screen {
    /// The host's name.
    host: String,
    /// The place in [`SORTS`].
    sort: usize,
    /// The VMs whose vCPUs are shown, by UID.
    open: BTreeSet<String>,
    help: bool,
    /// The selected row, and the first that is seen.
    list: ListState,
    /// The rows that fit.
    page: u16,
    /// Whether there are colours, and the columns of `-o wide`.
    style: TextStyle,
    /// Why the last sample failed, so that what is shown is old; empty if it did not.
    pub failure: String,
}

/// A line of text that others wrote parts of.
fn line<'a>(text: &str, style: Style) -> Line<'a> {
    Line::styled(printable(text), style)
}

impl Screen {
    /// The first screen of this host.
    pub(super) fn of(host: String, style: TextStyle) -> Self {
        Self {
            host,
            style,
            list: ListState::default().with_selected(Some(0)),
            ..Self::default()
        }
    }

    /// Handles a key; returns whether it ends the program.
    pub(super) fn key(&mut self, key: KeyEvent, model: &Model) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            // In raw mode Ctrl-C is a key and not a signal.
            KeyCode::Char('c') if is_control => return true,
            KeyCode::Char('q') => return true,
            KeyCode::Esc => self.help = false,
            KeyCode::Char('h' | '?') => self.help = !self.help,
            KeyCode::Char('s') => self.sort = (self.sort + 1) % SORTS.len(),
            KeyCode::Char('j') | KeyCode::Down => self.list.select_next(),
            KeyCode::Char('k') | KeyCode::Up => self.list.select_previous(),
            KeyCode::PageDown => self.list.scroll_down_by(self.page),
            KeyCode::PageUp => self.list.scroll_up_by(self.page),
            KeyCode::Enter => {
                let uid = self.selected(&self.rows(model)).map(|row| row.vm.pod.pod_uid.clone());
                if let Some(uid) = uid
                    && !self.open.remove(&uid)
                {
                    self.open.insert(uid);
                }
            }
            _ => {}
        }
        false
    }

    fn rows<'a>(&self, model: &'a Model) -> Vec<Row<'a>> {
        rows(model, SORTS[self.sort], |vm| self.open.contains(&vm.pod.pod_uid))
    }

    /// The last one where there are fewer rows than before.
    fn selected<'r, 'a>(&self, rows: &'r [Row<'a>]) -> Option<&'r Row<'a>> {
        rows.get(self.list.selected()?).or_else(|| rows.last())
    }

    /// Draws it; `clock` is the time of day.
    pub(super) fn draw(&mut self, model: &Model, clock: &str, area: Rect, buffer: &mut Buffer) {
        let (width, plain) = (usize::from(area.width), Style::new());
        let host = if self.host.is_empty() { "" } else { "  " };
        let title = format!("{}{host}{}", self.host, heading(model, clock));
        let mut above = vec![line(&title, plain.add_modifier(Modifier::BOLD))];
        let problems = node_lines(&model.problems, TextStyle::default());
        let failure = Some(self.failure.as_str()).filter(|text| !text.is_empty());
        let broken = failure.into_iter().chain(problems.lines().take(MAX_PROBLEMS));
        above.extend(broken.map(|text| line(&cut(text, width), self.style(Meaning::Broken))));
        if self.help {
            above.push(Line::default());
            above.extend(HELP.map(Line::raw));
            return Paragraph::new(above).render(area, buffer);
        }
        let rows = self.rows(model);
        let style = TextStyle {
            legend: true,
            width: Some(width),
            coloured: false,
            ..self.style
        };
        let text = table(&columns(), &rows, style);
        let mut lines = text.lines();
        above.push(line(
            lines.next().unwrap_or_default(),
            plain.add_modifier(Modifier::BOLD),
        ));
        let items = rows.iter().zip(lines).map(|(row, text)| {
            let style = if self.failure.is_empty() {
                self.style(row.meaning())
            } else {
                plain.add_modifier(Modifier::DIM)
            };
            ListItem::new(line(text, style)).style(style)
        });
        let former = model
            .former
            .iter()
            .map(|words| ListItem::new(line(&cut(words, width), plain)));
        let list = List::new(items.chain(former)).highlight_style(plain.add_modifier(Modifier::REVERSED));
        // Without rows there was none.
        let selected = self.list.selected().unwrap_or(0);
        self.list.select(Some(selected));
        let disturbed = self.selected(&rows).filter(|row| !row.reason().is_empty());
        let reason = disturbed.map(|row| {
            let vcpu = row.vcpu.map(|vcpu| format!("vcpu {} ", vcpu.name)).unwrap_or_default();
            format!("{vcpu}{}  steliactl why {}", row.reason(), row.vm.pod)
        });
        let at = (selected + 1).min(rows.len());
        let footer = format!("{at}/{}  by {}  {KEYS}", rows.len(), SORTS[self.sort]);
        let reason = paragraph(&reason.unwrap_or_default(), style);
        let mut below: Vec<Line> = reason.lines().map(|text| line(text, plain)).collect();
        below.push(line(&footer, plain.add_modifier(Modifier::DIM)));
        // The table keeps a row on the smallest terminal.
        let height = |lines: &[Line]| Constraint::Max(u16::try_from(lines.len()).unwrap_or(u16::MAX));
        let heights = [height(&above), Constraint::Min(1), height(&below)];
        let [top, middle, bottom] = Layout::vertical(heights).areas(area);
        self.page = middle.height;
        Paragraph::new(above).render(top, buffer);
        StatefulWidget::render(list, middle, buffer, &mut self.list);
        Paragraph::new(below).render(bottom, buffer);
    }

    fn style(&self, meaning: Meaning) -> Style {
        match meaning {
            Meaning::Broken if self.style.coloured => Style::new().fg(Color::Red),
            Meaning::Attention if self.style.coloured => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::testing::model;
    use super::*;
    use crate::tests::fixtures::says;

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> TestBackend {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| screen.draw(&model(), "22:12:53", frame.area(), frame.buffer_mut()))
            .unwrap();
        terminal.backend().clone()
    }

    fn screen() -> Screen {
        Screen::of("node-1".to_owned(), TextStyle::default())
    }

    fn press(screen: &mut Screen, keys: &str) {
        for key in keys.chars() {
            let key = if key == '\n' {
                KeyCode::Enter
            } else {
                KeyCode::Char(key)
            };
            assert!(!screen.key(KeyEvent::from(key), &model()));
        }
    }

    #[test]
    fn eighty_columns_have_trouble_first_and_the_selected_row_says_why() {
        let mut screen = screen();
        press(&mut screen, "jj\n");
        assert_snapshot!(drawn(&mut screen, 80, 12));
        press(&mut screen, "j\n");
        let closed = drawn(&mut screen, 80, 12).to_string();
        assert!(!closed.contains("vcpu 1"), "a vCPU closes its VM");
    }

    #[test]
    fn keys_sort_and_end_it() {
        let mut screen = screen();
        let first = |screen: &Screen| screen.rows(&model())[0].vm.pod.pod_uid.clone();
        assert_eq!(first(&screen), "dddd");
        press(&mut screen, "s");
        assert_eq!(first(&screen), "aaaa");
        says(&drawn(&mut screen, 80, 8).to_string(), &["1/4  by UTIL%  ", "  q quit"]);
        press(&mut screen, "ssss");
        assert_eq!(screen.sort, 0, "the last is before the first");
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(screen.key(interrupt, &model()));
        assert!(screen.key(KeyEvent::from(KeyCode::Char('q')), &model()));
    }

    #[test]
    fn old_rows_are_dimmed_and_colours_mean_trouble() {
        let mut coloured = screen();
        coloured.style.coloured = true;
        let of = |screen: &Screen, row: u16| drawn(&mut screen.clone(), 80, 9).buffer()[(0, row)].clone();
        let colours = [3, 4, 5].map(|row| of(&coloured, row).fg);
        assert_eq!(colours, [Color::Red, Color::Yellow, Color::Yellow]);
        assert_eq!(of(&screen(), 4).fg, Color::Reset);
        let stale = Screen {
            failure: "steliad is not running\x1b[2J".to_owned(),
            ..coloured
        };
        let text = drawn(&mut stale.clone(), 80, 9).to_string();
        says(&text, &["steliad is not running?[2J"]);
        let row = of(&stale, 4);
        assert!(row.modifier.contains(Modifier::DIM) && row.fg == Color::Reset);
    }

    #[test]
    fn the_selected_row_is_always_seen_and_no_size_is_too_small() {
        let mut screen = screen();
        press(&mut screen, "jjjjjj");
        // Room for two rows.
        let text = drawn(&mut screen, 80, 7).to_string();
        assert!(
            text.contains("shop/web-2 ") && !text.contains("team-b/database-1"),
            "{text}"
        );
        press(&mut screen, "kkkkkk");
        says(&drawn(&mut screen, 80, 7).to_string(), &["team-b/database-1", "1/4"]);
        for (width, height) in [(1, 1), (5, 3), (20, 4), (200, 2)] {
            for help in [false, true] {
                drawn(&mut Screen { help, ..screen.clone() }, width, height);
            }
        }
    }
}
