//! A model of tracefs with hist triggers, by the rules of kernels 6.1 and 6.12: what a trigger refers to must exist, and neither
//! that nor an instance with variables can be removed.

mod trigger;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use rustix::io::Errno;

use trigger::Trigger;

/// The directory at which tracefs is mounted.
pub const ROOT: &str = "/sys/kernel/tracing";
const HISTOGRAM: &str = "# event histogram\n#\n# trigger info: ";
const AVAILABLE: &str = "# Available triggers:\n# traceon traceoff snapshot stacktrace enable_event hist\n";
/// A write of so many bytes is refused.
const PAGE_BYTES: usize = 4096;

/// A row of a histogram that a test adds.
#[derive(Debug, Clone)]
struct Row {
    event: String,
    keys: String,
    values: Vec<String>,
    hits: u64,
    sum: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct Instance {
    files: BTreeMap<String, String>,
    triggers: Vec<Trigger>,
    rows: Vec<Row>,
    errors: String,
}

#[derive(Debug, Clone, Default)]
pub struct Tracefs {
    events: BTreeSet<String>,
    /// Synthetic events with their numbers of fields.
    dynamic: BTreeMap<String, usize>,
    instances: BTreeMap<String, Instance>,
    /// Path and text of each write that succeeded.
    pub writes: Vec<(String, String)>,
    /// The number of events that each histogram drops.
    pub dropped: u64,
    /// The kernel has no synthetic events.
    pub without_synthetic: bool,
    /// A trigger's text has the key of the CPU twice, as Linux 7.2.13 prints it.
    pub prints_cpu_twice: bool,
}

impl Tracefs {
    /// A tracefs with these events.
    pub fn with(events: &[&str]) -> Self {
        Self {
            events: events.iter().map(|event| (*event).to_owned()).collect(),
            ..Self::default()
        }
    }

    pub fn instances(&self) -> Vec<&str> {
        self.instances.keys().map(String::as_str).collect()
    }

    pub fn synthetic(&self) -> Vec<&str> {
        self.dynamic.keys().map(String::as_str).collect()
    }

    /// The triggers of an instance, as the kernel prints them.
    pub fn triggers(&self, instance: &str) -> Vec<String> {
        let triggers = &self.instances[instance].triggers;
        triggers
            .iter()
            .map(|one| format!("{} {}", one.event, one.print()))
            .collect()
    }

    /// Set a row of the event's histogram with these keys.
    pub fn count(&mut self, instance: &str, event: &str, keys: &str, values: &[&str], hits: u64, sum: Option<u64>) {
        let row = Row {
            event: event.into(),
            keys: keys.into(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
            hits,
            sum,
        };
        let Some(Instance { rows, .. }) = self.instances.get_mut(instance) else {
            return;
        };
        rows.retain(|old| (&old.event, &old.keys, &old.values) != (&row.event, &row.keys, &row.values));
        rows.push(row);
    }

    fn all_events(&self) -> impl Iterator<Item = String> + '_ {
        let synthetic = self.dynamic.keys().map(|name| format!("synthetic/{name}"));
        self.events.iter().cloned().chain(synthetic)
    }

    pub(super) fn make(&mut self, path: &str) -> io::Result<()> {
        let name = path.strip_prefix("/sys/kernel/tracing/instances/").ok_or(Errno::PERM)?;
        if self.instances.contains_key(name) {
            return Err(Errno::EXIST.into());
        }
        let files = [("tracing_on", "1"), ("buffer_size_kb", "1410")];
        let files = files.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let instance = Instance {
            files,
            ..Instance::default()
        };
        self.instances.insert(name.into(), instance);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) -> io::Result<()> {
        let name = path.strip_prefix("/sys/kernel/tracing/instances/").ok_or(Errno::PERM)?;
        let instance = self.instances.get(name).ok_or(Errno::NOENT)?;
        if instance.triggers.iter().any(|trigger| !trigger.variables.is_empty()) {
            return Err(Errno::BUSY.into());
        }
        self.instances.remove(name);
        Ok(())
    }

    pub(super) fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let below = path.strip_prefix(ROOT).unwrap_or_default().trim_start_matches('/');
        let (instance, rest) = match below.strip_prefix("instances") {
            Some("") => return Ok(self.instances.keys().cloned().collect()),
            Some(rest) => {
                let rest = rest.trim_start_matches('/');
                let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
                (Some(self.instances.get(name).ok_or(Errno::NOENT)?), rest)
            }
            None => (None, below),
        };
        let names: BTreeSet<String> = match rest.strip_prefix("events") {
            None if rest.is_empty() => {
                let files = instance.iter().flat_map(|one| one.files.keys().cloned());
                files.chain(["events".to_owned()]).collect()
            }
            None => return Err(Errno::NOENT.into()),
            Some(group) => {
                let group = group.trim_start_matches('/');
                let names = self.all_events();
                let names = names.filter_map(|event| match group {
                    "" => event.split('/').next().map(str::to_owned),
                    _ => Some(event.strip_prefix(group)?.strip_prefix('/')?.to_owned()),
                });
                names.chain(["enable".into(), "filter".into()]).collect()
            }
        };
        // `enable` and `filter` alone: there is no such group or event.
        let exists =
            names.len() > 2 || rest.is_empty() || self.all_events().any(|event| rest == format!("events/{event}"));
        if exists {
            Ok(names.into_iter().collect())
        } else {
            Err(Errno::NOENT.into())
        }
    }

    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        if path == "/sys/kernel/tracing/dynamic_events" {
            let events = self.dynamic.keys().map(|name| format!("s:synthetic/{name}\tu64 ns\n"));
            return Ok(events.collect());
        }
        let (instance, file) = self.file(path)?;
        if let Some(value) = instance.files.get(file) {
            return Ok(format!("{value}\n"));
        }
        if file == "error_log" {
            return Ok(instance.errors.clone());
        }
        let event = file.strip_prefix("events/").and_then(|event| event.rsplit_once('/'));
        let (event, file) = event.ok_or(Errno::NOENT)?;
        if !self.all_events().any(|one| one == event) {
            return Err(Errno::NOENT.into());
        }
        let mut triggers = instance.triggers.iter().filter(|one| one.event == event).peekable();
        match file {
            "trigger" if triggers.peek().is_none() => Ok(AVAILABLE.into()),
            "trigger" => Ok(triggers.map(|one| self.shown(one) + "\n").collect()),
            "hist" => Ok(triggers.map(|one| self.histogram(instance, one)).collect()),
            _ => Err(Errno::NOENT.into()),
        }
    }

    fn shown(&self, trigger: &Trigger) -> String {
        let text = trigger.print();
        if self.prints_cpu_twice {
            text.replacen("common_cpu:", "common_cpucommon_cpu:", 1)
        } else {
            text
        }
    }

    fn histogram(&self, instance: &Instance, trigger: &Trigger) -> String {
        let mut text = format!("{HISTOGRAM}{}\n#\n\n", self.shown(trigger));
        let rows = instance.rows.iter();
        for row in rows.filter(|row| row.event == trigger.event && row.keys == trigger.keys) {
            let keys = row.keys.split(',').zip(&row.values);
            let keys = keys.map(|(name, value)| match name {
                "next_comm" | "comm" | "name" => format!("{name}: {value:<48}"),
                _ => format!("{name}: {value:>10}"),
            });
            let keys: Vec<String> = keys.collect();
            text += &format!("{{ {} }} hitcount: {:>10}", keys.join(", "), row.hits);
            if let Some(sum) = row.sum {
                text += &format!("  ns: {sum:>10}");
            }
            text.push('\n');
        }
        text + &format!(
            "\nTotals:\n    Hits: 0\n    Entries: 0\n    Dropped: {}\n",
            self.dropped
        )
    }

    fn file<'a>(&self, path: &'a str) -> Result<(&Instance, &'a str), Errno> {
        let below = path
            .strip_prefix("/sys/kernel/tracing/instances/")
            .ok_or(Errno::NOENT)?;
        let (name, file) = below.split_once('/').ok_or(Errno::ISDIR)?;
        Ok((self.instances.get(name).ok_or(Errno::NOENT)?, file))
    }

    pub(super) fn write(&mut self, path: &str, text: &str) -> io::Result<()> {
        if path == "/sys/kernel/tracing/dynamic_events" {
            self.dynamic(text)?;
        } else {
            let (_, file) = self.file(path)?;
            let event = file
                .strip_prefix("events/")
                .and_then(|file| file.strip_suffix("/trigger"));
            match event.map(str::to_owned) {
                Some(event) => self.trigger(path, &event, text)?,
                None => {
                    let (name, file) = (name(path), file.to_owned());
                    let files = &mut self.instances.get_mut(&name).ok_or(Errno::NOENT)?.files;
                    *files.get_mut(&file).ok_or(Errno::NOENT)? = text.into();
                }
            }
        }
        self.writes.push((path.into(), text.into()));
        Ok(())
    }

    fn dynamic(&mut self, text: &str) -> Result<(), Errno> {
        if let Some(name) = text.strip_prefix("-:synthetic/") {
            if !self.dynamic.contains_key(name) {
                return Err(Errno::NOENT);
            }
            let event = format!("synthetic/{name}");
            let mut triggers = self.instances.values().flat_map(|one| &one.triggers);
            if triggers.any(|one| one.event == event || one.fired().is_some_and(|(_, fired, _)| fired == name)) {
                return Err(Errno::BUSY);
            }
            self.dynamic.remove(name);
            return Ok(());
        }
        let (name, fields) = text
            .strip_prefix("s:")
            .and_then(|text| text.split_once(' '))
            .ok_or(Errno::INVAL)?;
        if self.without_synthetic || self.dynamic.contains_key(name) {
            return Err(Errno::INVAL);
        }
        self.dynamic.insert(name.into(), fields.split(';').count());
        Ok(())
    }

    fn trigger(&mut self, path: &str, event: &str, text: &str) -> Result<(), Errno> {
        if !self.all_events().any(|one| one == event) {
            return Err(Errno::NOENT);
        }
        if text.len() + 1 >= PAGE_BYTES {
            return Err(Errno::INVAL);
        }
        let (text, removes) = text.strip_prefix('!').map_or((text, false), |text| (text, true));
        if text.contains("common_cpucommon_cpu") {
            return Err(Errno::INVAL);
        }
        let trigger = Trigger::parse(event, text).ok_or(Errno::INVAL)?;
        self.file(path)?;
        let all: BTreeSet<String> = self.all_events().collect();
        let fired = trigger
            .fired()
            .map(|(matching, name, values)| all.contains(&matching) && self.dynamic.get(name) == Some(&values));
        let name = name(path);
        let instance = self.instances.get_mut(&name).ok_or(Errno::NOENT)?;
        let place = instance.triggers.iter().position(|one| one.is_same(&trigger));
        if removes {
            let Some(place) = place else { return Ok(()) };
            let mut reads = instance.triggers.iter().flat_map(Trigger::reads);
            if reads.any(|variable| trigger.defines(&variable)) {
                return Err(Errno::BUSY);
            }
            instance.triggers.remove(place);
            return Ok(());
        }
        if place.is_some() {
            return Err(Errno::EXIST);
        }
        let defined = |variable: &String| instance.triggers.iter().any(|one| one.defines(variable));
        let mut names = trigger
            .variables
            .iter()
            .filter_map(|one| Some(one.split_once('=')?.0.to_owned()));
        let doubled = names.any(|name| defined(&name));
        if doubled || !trigger.reads().iter().all(defined) || fired == Some(false) {
            instance.errors = format!("[    1.0] hist:{event}: error: Couldn't find it\n  Command: {text}\n");
            return Err(Errno::INVAL);
        }
        instance.triggers.push(trigger);
        Ok(())
    }
}

fn name(path: &str) -> String {
    path.split('/').nth(5).unwrap_or_default().to_owned()
}
