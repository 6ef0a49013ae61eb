//! `list`: one line per instance.

use serde::Serialize;

use crate::client::InstanceSummary;
use crate::view::{Column, Render, column, list};

const COLUMNS: [Column<InstanceSummary>; 6] = [
    column("POD UID", |instance| instance.pod_uid.clone()),
    column("CONTAINER", |instance| instance.container.clone()),
    column("STATE", |instance| instance.state.clone()),
    column("CPUS", |instance| instance.exclusive_cpus.clone()),
    column("FLOAT", |instance| instance.float_cpus.clone()),
    column("DEGRADED", |instance| instance.degraded.join("; ")),
];

#[derive(Debug, Serialize)]
pub(crate) struct Instances(pub Vec<InstanceSummary>);

impl Render for Instances {
    fn text(&self, legend: bool) -> String {
        list(&COLUMNS, &self.0, legend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_is_its_header() {
        let none = Instances(Vec::new());
        assert_eq!(none.text(true), "POD UID  CONTAINER  STATE  CPUS  FLOAT  DEGRADED\n");
        assert_eq!(none.text(false), "");
    }
}
