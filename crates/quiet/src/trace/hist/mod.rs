//! Parses the text of a `hist` file (Documentation/trace/histogram.rst, `hist_show` in `kernel/trace/trace_events_hist.c`).
//!
//! The kernel prints names as they are: a task may have any 15 bytes as its name, including line feeds and braces. But it
//! pads names to 48 bytes and prints the CPU behind them, so no name is long enough to look like the end of a row. A row
//! ends at a line that ends in a CPU and counts, and its keys are read from its end.

#[cfg(test)]
mod tests;

/// A histogram. An event has one for each of its triggers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Names of the keys, in the order of the trigger.
    pub keys: Vec<String>,
    pub rows: Vec<HistogramRow>,
    /// How many events were not counted because the histogram was full.
    pub dropped: u64,
    /// How many rows could not be read.
    pub unread: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistogramRow {
    /// Values in the order of [`Histogram::keys`], without the blanks around them.
    pub keys: Vec<String>,
    pub hits: u64,
    /// The first sum besides the hits.
    pub sum: Option<u64>,
}

impl Histogram {
    /// The index of this key in a row.
    pub fn key_index(&self, key: &str) -> Option<usize> {
        self.keys.iter().position(|name| name == key)
    }
}

const BEGIN: &str = "{ ";
const END: &str = " } hitcount:";
const INFO: &str = "# trigger info: hist:keys=";
/// Limit of a row, in bytes.
const MAX_ROW_BYTES: usize = 4096;

/// The name of the CPU's key, and what Linux 7.2.13 prints of it in a trigger's text: rows have it once, and a trigger with it twice is refused.
const CPU_KEY: &str = "common_cpu";
const CPU_KEY_TWICE: &str = "common_cpucommon_cpu";

/// A trigger's text as it can be written.
pub(super) fn as_written(shown: &str) -> String {
    shown.replace(CPU_KEY_TWICE, CPU_KEY)
}

/// All histograms in a file's text. Texts that are not understood are left out and counted.
pub fn parse(text: &str) -> Vec<Histogram> {
    let mut histograms: Vec<Histogram> = Vec::new();
    let mut incomplete: Option<String> = None;
    for line in text.split('\n') {
        if let Some(mut begun) = incomplete.take() {
            begun.push('\n');
            begun.push_str(line);
            incomplete = add(&mut histograms, begun);
        } else if line.starts_with(BEGIN) {
            incomplete = add(&mut histograms, line.to_owned());
        } else if let Some(info) = line.strip_prefix(INFO) {
            let keys = as_written(info.split([':', ' ']).next().unwrap_or_default());
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
    if let (Some(_), Some(last)) = (incomplete, histograms.last_mut()) {
        last.unread += 1;
    }
    histograms
}

/// Add a row to the last histogram. Returns the text if the row has not ended yet.
fn add(histograms: &mut [Histogram], text: String) -> Option<String> {
    let last = histograms.last_mut()?;
    match row(&text, &last.keys) {
        Some(row) => last.rows.push(row),
        None if text.len() < MAX_ROW_BYTES => return Some(text),
        None => last.unread += 1,
    }
    None
}

/// `{ next_comm: sleep   , common_cpu:   3 } hitcount:   1  ns:   159387`; `None` if it is not complete.
fn row(text: &str, names: &[String]) -> Option<HistogramRow> {
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
        // If there are several keys, the last is the CPU, which distinguishes a row's end from a name.
        if keys.is_empty() && value.trim().parse::<u32>().is_err() {
            return None;
        }
        keys.push(value.trim().to_owned());
        rest = before;
    }
    let first = rest.strip_prefix(names.first()?.as_str())?.strip_prefix(':')?;
    // The kernel prints one blank before the name and pads behind it: further blanks before it are the name's own.
    keys.push(
        first
            .strip_prefix(' ')
            .unwrap_or(first)
            .trim_end_matches(' ')
            .to_owned(),
    );
    keys.reverse();
    // Numbers are padded in front.
    let number = keys.first_mut().filter(|first| first.trim().parse::<u64>().is_ok());
    if let Some(number) = number {
        *number = number.trim().to_owned();
    }
    Some(HistogramRow { keys, hits, sum })
}
