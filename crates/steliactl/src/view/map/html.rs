//! The map as one page that needs nothing else: no script, nothing from elsewhere, and a policy that forbids both. Pointing at a
//! CPU, a device or a row shows the pod and lifts all that is its own out of the rest; a link to `#v3` does so too.

use std::fmt::Write as _;

use super::layout::{picture, sample, sample_width};
use super::marks::mark;
use super::svg::{STYLE, part};
use super::{Map, Pod};
use crate::shared::output::{PAGE_HEAD, escaped, printable};

const PAGE_STYLE: &str = include_str!("html.css");

pub(super) fn page(map: &Map) -> String {
    let host = escaped(&map.host);
    let host = if host.is_empty() { "Node".to_owned() } else { host };
    let mut out = format!(
        "{PAGE_HEAD}<title>CPUs of {host}, {time}</title>\n\
         <style>\n{STYLE}{PAGE_STYLE}{pointed}</style>\n</head>\n<body>\n\
         <h1>{host}</h1>\n<p>{time}, {extent}</p>\n<div class=\"picture\">\n{svg}</div>\n",
        time = map.time(),
        extent = map.extent(),
        pointed = pointed(map.pods.len()),
        svg = part(&picture(map, false)),
    );
    if let Some(why) = &map.devices_unknown {
        let _ = writeln!(out, "<p>kubelet's devices are not known: {}</p>", escaped(why));
    }
    if !map.pods.is_empty() {
        table(&mut out, map);
        map.pods.iter().enumerate().for_each(|(n, pod)| panel(&mut out, n, pod));
    }
    out + "</body>\n</html>\n"
}

/// What is pointed at, focused or linked to, pod by pod: CSS cannot say "of the same pod".
fn pointed(pods: usize) -> String {
    let rules = (0..pods).map(|n| {
        let of = format!("body:has(.v{n}:hover,.v{n}:focus-within,#v{n}:target)");
        format!("{of} .v{n}>rect{{stroke-width:3;stroke-dasharray:none;stroke:var(--lift)}}{of} #p{n}{{display:block}}{of} tr.v{n}{{background:var(--row)}}\n")
    });
    rules.collect()
}

fn table(out: &mut String, map: &Map) {
    out.push_str("<table>\n<thead><tr>");
    for heading in ["Mark", "Pod", "CPUs", "State", "Devices", "UID"] {
        let _ = write!(out, "<th scope=\"col\">{heading}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    let width = sample_width(map);
    for (n, pod) in map.pods.iter().enumerate() {
        let mark = part(&sample(n, pod, width));
        let _ = write!(
            out,
            "<tr class=\"v{n}\" id=\"v{n}\"><td><a href=\"#v{n}\">{mark}</a></td>"
        );
        let cells = [
            pod.pod.to_string(),
            pod.cpus.to_string(),
            pod.state(),
            devices(pod),
            pod.pod.pod_uid.clone(),
        ];
        for cell in cells {
            let _ = write!(out, "<td>{}</td>", escaped(&printable(&cell)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n");
}

fn devices(pod: &Pod) -> String {
    let devices = pod.devices.iter().map(|device| {
        let count = if device.count == 1 {
            String::new()
        } else {
            format!("{} × ", device.count)
        };
        let node = device
            .node
            .map(|node| format!(" on NUMA node {node}"))
            .unwrap_or_default();
        let away = if pod.is_remote(device) {
            ", remote from its CPUs"
        } else {
            ""
        };
        format!("{count}{}{node}{away}", device.name)
    });
    devices.collect::<Vec<_>>().join(", ")
}

/// All that is known of a pod, shown while it is pointed at.
fn panel(out: &mut String, n: usize, pod: &Pod) {
    let _ = write!(
        out,
        "<aside id=\"p{n}\"><h2>{} {}</h2><dl>",
        mark(n),
        escaped(&pod.pod.to_string())
    );
    let container = pod.instance.as_ref().map(|instance| instance.container.clone());
    let rows = [
        ("State", pod.state()),
        ("Degraded", pod.degraded().join("; ")),
        ("CPUs", pod.cpus.to_string()),
        ("Devices", devices(pod)),
        ("Container", container.unwrap_or_default()),
        ("UID", pod.pod.pod_uid.clone()),
    ];
    for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(value));
    }
    out.push_str("</dl></aside>\n");
}
