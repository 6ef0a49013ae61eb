//! A hist trigger: its text as it is written and as the kernel prints it.

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) event: String,
    pub(super) keys: String,
    /// `stelia_from0=common_timestamp`
    pub(super) variables: Vec<String>,
    values: String,
    /// `onmatch(sched.sched_switch).stelia_run(prev_comm,$ns)`
    fires: Option<String>,
    size: String,
    clock: Option<String>,
    pub(super) filter: String,
}

impl Trigger {
    pub(super) fn parse(event: &str, text: &str) -> Option<Self> {
        let (hist, filter) = text.split_once(" if ").unwrap_or((text, ""));
        let mut trigger = Self {
            event: event.into(),
            keys: String::new(),
            variables: Vec::new(),
            values: "hitcount".into(),
            fires: None,
            size: "2048".into(),
            clock: None,
            filter: filter.into(),
        };
        for part in hist.strip_prefix("hist:")?.split(':') {
            match part.split_once('=') {
                _ if part.starts_with("onmatch(") => trigger.fires = Some(part.into()),
                Some(("keys", keys)) => trigger.keys = keys.into(),
                Some(("size", size)) => trigger.size = size.into(),
                Some(("clock", clock)) => trigger.clock = Some(clock.into()),
                Some(("sort", _)) => {}
                Some(("vals", values)) if values.starts_with("hitcount") => trigger.values = values.into(),
                Some(("vals", values)) => trigger.values = format!("hitcount,{values}"),
                Some(_) => trigger.variables.push(part.into()),
                None => return None,
            }
        }
        (1..=3).contains(&trigger.keys.split(',').count()).then_some(trigger)
    }

    /// As the kernel prints it.
    pub(super) fn print(&self) -> String {
        let mut text = format!("hist:keys={}:vals={}", self.keys, self.values);
        for variable in &self.variables {
            text += &format!(":{variable}");
        }
        text += &format!(":sort=hitcount:size={}", self.size);
        for part in self
            .clock
            .iter()
            .map(|clock| format!("clock={clock}"))
            .chain(self.fires.clone())
        {
            text += &format!(":{part}");
        }
        if !self.filter.is_empty() {
            text += &format!(" if {}", self.filter);
        }
        text + " [active]"
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        let identity = |one: &Self| {
            let Self {
                event,
                keys,
                variables,
                fires,
                filter,
                ..
            } = one.clone();
            (event, keys, variables, fires, filter)
        };
        identity(self) == identity(other)
    }

    pub(super) fn defines(&self, variable: &str) -> bool {
        self.variables.iter().any(|one| one.split('=').next() == Some(variable))
    }

    /// The variables of other triggers that it reads.
    pub(super) fn reads(&self) -> Vec<String> {
        let all = self
            .variables
            .iter()
            .chain(&self.fires)
            .flat_map(|text| text.split('$').skip(1));
        let end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let names = all.map(|text| text.split(end).next().unwrap_or_default().to_owned());
        names.filter(|name| !self.defines(name)).collect()
    }

    /// The event that has to match, the synthetic event that is fired, and how many values it gets.
    pub(super) fn fired(&self) -> Option<(String, &str, usize)> {
        let (matching, fired) = self.fires.as_deref()?.strip_prefix("onmatch(")?.split_once(").")?;
        let (name, values) = fired.strip_suffix(')')?.split_once('(')?;
        Some((matching.replace('.', "/"), name, values.split(',').count()))
    }
}
