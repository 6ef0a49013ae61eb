//! Metrics on a real kernel, written by the unit in its sandbox.

use std::fs;

use crate::support::*;

/// Where node-exporter's textfile collector looks.
const FOLDER: &str = "/var/lib/prometheus/node-exporter";

fn values(text: &str, name: &str, pod: &str) -> Vec<f64> {
    let start = format!("{name}{{pod_uid=\"{pod}\"");
    let lines = text.lines().filter(|line| line.starts_with(&start));
    let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse().ok());
    lines.map(|line| value(line).expect("a value")).collect()
}

#[test]
fn the_sandboxed_unit_writes_what_the_kernel_counts_of_each_vcpu() {
    on_node(|| {
        let pod = Pod::vm("measured", 2);
        assert_isolated(&pod, 2);
        fs::create_dir_all(FOLDER).expect("folder");
        run("systemctl start steliad-metrics.service");
        let text = read(format!("{FOLDER}/steliad.prom"));
        let of = |name: &str| values(&text, name, &pod.uid);
        for name in [
            "stelia_vcpu_run_seconds_total",
            "stelia_vcpu_run_delay_seconds_total",
            "stelia_vcpu_involuntary_switches_total",
        ] {
            assert_eq!(of(name).len(), 2, "{name}: {text}");
        }
        let ran = of("stelia_vcpu_run_seconds_total");
        assert!(ran.iter().all(|ran| *ran > 0.0), "{text}");
        assert!(of("stelia_instance_float_cpu_seconds_total")[0] > 0.0, "{text}");
        assert_eq!(of("stelia_instance_exclusive_cpus"), [2.0], "{text}");
        let named = format!(
            "stelia_instance_info{{pod_uid=\"{}\",namespace=\"default\",pod=\"{}\"",
            pod.uid, pod.name
        );
        assert_says(&text, &[&named]);
        fs::remove_dir_all(FOLDER).expect("folder");
    });
}
