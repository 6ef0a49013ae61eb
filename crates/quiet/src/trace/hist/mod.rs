//! The text of a `hist` file (Documentation/trace/histogram.rst, `hist_show` in `kernel/trace/trace_events_hist.c`).
//!
//! The kernel prints texts as they are: a task may call itself anything of 15 bytes, line feeds and braces among them. But it
//! fills them up to 48 bytes and puts the CPU behind them, so no name is long enough to look like the end of a row: a row
//! ends where a line ends in a CPU and counts, and its keys are read from its end.

#[cfg(test)]
mod tests;

/// A histogram: one of each trigger of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Names of the keys, in the order of the trigger.
    pub keys: Vec<String>,
    pub rows: Vec<Row>,
    /// How many events found no room.
    pub dropped: u64,
    /// How many rows could not be read: what they count is missing.
    pub unread: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// In the order of [`Histogram::keys`], without the blanks around them.
    pub keys: Vec<String>,
    pub hits: u64,
    /// The first of the other sums.
    pub sum: Option<u64>,
}

impl Histogram {
    /// Which of a row's keys this is.
    pub fn at(&self, key: &str) -> Option<usize> {
        self.keys.iter().position(|name| name == key)
    }
}

/// What a row begins and ends with.
const BEGIN: &str = "{ ";
const END: &str = " } hitcount:";
const INFO: &str = "# trigger info: hist:keys=";
/// Limit of a row, in bytes.
const MAX_ROW_BYTES: usize = 4096;

/// All histograms in a file's text. Never fails: what is not understood is left out and counted.
pub fn parse(text: &str) -> Vec<Histogram> {
    let mut histograms: Vec<Histogram> = Vec::new();
    let mut open: Option<String> = None;
    for line in text.split('\n') {
        if let Some(mut begun) = open.take() {
            begun.push('\n');
            begun.push_str(line);
            open = add(&mut histograms, begun);
        } else if line.starts_with(BEGIN) {
            open = add(&mut histograms, line.to_owned());
        } else if let Some(info) = line.strip_prefix(INFO) {
            let keys = info.split([':', ' ']).next().unwrap_or_default();
            histograms.push(Histogram {
                keys: keys.split(',').map(str::to_owned).collect(),
                ..Histogram::default()
            });
        } else if let (Some(dropped), Some(last)) = (line.trim().strip_prefix("Dropped:"), histograms.last_mut()) {
            match dropped.trim().parse() {
                Ok(dropped) => last.dropped = dropped,
                Err(_) => last.unread += 1,
            }
        }
    }
    if let (Some(_), Some(last)) = (open, histograms.last_mut()) {
        last.unread += 1;
    }
    histograms
}

/// Add a row to the last histogram; or, if it has not ended, give it back.
fn add(histograms: &mut [Histogram], text: String) -> Option<String> {
    let last = histograms.last_mut()?;
    match row(&text, &last.keys) {
        Some(row) => last.rows.push(row),
        None if text.len() < MAX_ROW_BYTES => return Some(text),
        None => last.unread += 1,
    }
    None
}

/// `{ next_comm: sleep   , common_cpu:   3 } hitcount:   1  ns:   159387`; `None` if it is not whole.
fn row(text: &str, names: &[String]) -> Option<Row> {
    let (keyed, counted) = text.strip_prefix(BEGIN)?.rsplit_once(END)?;
    let mut words = counted.split_whitespace();
    let hits = words.next()?.parse().ok()?;
    let sum = match (words.next(), words.next(), words.next()) {
        (None, ..) => None,
        (Some(name), Some(sum), None) if name.ends_with(':') => Some(sum.parse().ok()?),
        _ => return None,
    };
    let mut keys = Vec::new();
    let mut rest = keyed;
    for name in names.iter().skip(1).rev() {
        let (before, value) = rest.rsplit_once(&format!(", {name}:"))?;
        // If there are several keys, the last is the CPU, by which a row's end is told from a name.
        if keys.is_empty() && value.trim().parse::<u32>().is_err() {
            return None;
        }
        keys.push(value.trim().to_owned());
        rest = before;
    }
    let first = rest.strip_prefix(names.first()?.as_str())?.strip_prefix(':')?;
    // One blank is the kernel's, and those behind it fill up: one that the name begins with stays.
    keys.push(
        first
            .strip_prefix(' ')
            .unwrap_or(first)
            .trim_end_matches(' ')
            .to_owned(),
    );
    keys.reverse();
    // A number is filled up in front.
    let number = keys.first_mut().filter(|first| first.trim().parse::<u64>().is_ok());
    if let Some(number) = number {
        *number = number.trim().to_owned();
    }
    Some(Row { keys, hits, sum })
}
