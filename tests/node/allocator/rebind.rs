//! Rebind: running VMs move to better CPUs.

use std::fs;

use serde_json::{Value, json};

use super::{moved, nodes, on_allocator, on_allocator_undoing, shape, steliactl, vm};
use crate::support::apiserver::{SERVER, get};
use crate::support::*;

const CORES: &[&str] = &["--cpu-bind-policy", "FullPCPUs"];
/// CPU 0 is nobody's: three CPUs of one NUMA node and four of the other can be had.
const SETTINGS: &str = "reserved-cpus = \"0\"\ncpu-bind-policy = \"FullPCPUs\"\nrebind-interval-s = 0";

/// A VM with a CPU of each NUMA node: it came while others had all but one of either.
fn fragmented() -> Pod {
    let fillers = ["small", "large"].map(|name| Sleeper::start(name, &[]));
    fillers[0].get("cpus=2");
    fillers[1].get("cpus=3");
    let machine = vm("machine", 2, &[], CORES);
    assert_eq!(shape(&machine.exclusive()), (2, 2, 2));
    fillers.iter().for_each(|filler| filler.pod.deregister());
    machine
}

fn rebind(arguments: &[&str]) -> Value {
    steliactl(&["rebalance"], arguments)
}

fn wait_running_on(pod: &Pod) {
    let before = pod.threads().ran();
    wait_until(&format!("{} runs on", pod.name), || pod.threads().ran() > before);
    assert_eq!(probe(pod, "readiness"), (true, "isolated".into()));
}

#[test]
fn a_running_vm_moves_to_one_numa_node_and_no_guest_stops() {
    on_allocator(SETTINGS, || {
        let machine = fragmented();
        let still = vm("still", 2, &[], CORES);
        let before = (assert_isolated(&machine, 2), assert_isolated(&still, 2));
        let (ids, still_ids) = (machine.threads().identities(), still.threads().identities());

        let planned = rebind(&["--dry-run"]);
        assert_eq!((&planned["job"], &planned["phase"]), (&Value::Null, &"".into()));
        let gain = planned["moves"][0]["gain"].as_str().expect("a gain").to_owned();
        assert!(gain.contains("NUMA nodes: 2 -> 1"), "{planned}");
        assert_eq!((assert_isolated(&machine, 2), assert_isolated(&still, 2)), before);

        let done = rebind(&[]);
        assert_eq!(&done["phase"], "Succeed", "{done}");
        assert_eq!(done["moves"], planned["moves"]);
        let (from, machine) = (machine.exclusive(), moved(machine));
        let to = machine.exclusive();
        let told = &done["moves"][0];
        assert_eq!((told["pod_uid"].as_str(), nodes(&to).len()), (Some(&*machine.uid), 1));
        assert_eq!(cpus(told["from"].as_str().expect("from")), from);
        assert_eq!(to.len(), 2);
        assert_isolated(&machine, 2);
        assert_eq!(machine.threads().identities(), ids);
        let still = moved(still);
        assert_eq!(assert_isolated(&still, 2).vcpus.len(), 2);
        assert_eq!(still.threads().identities(), still_ids);
        // The CPUs it left are everybody's again.
        assert_eq!(partitioned(), to.union(&still.exclusive()));
        wait_running_on(&machine);
        wait_running_on(&still);
        let journal = journal("-u steliad");
        let line = format!("({}) moved from CPUs {from} to {to}: {gain}", machine.uid);
        assert!(journal.contains(&line), "{journal}");
        let explained = run(&["steliactl", "why", &machine.uid]);
        assert_says(&explained, &[&format!("rebound from {from} to {to}")]);
        // Nothing is left to gain; and it is so for the next daemon as well.
        assert_eq!(rebind(&[])["moves"], Value::Array(Vec::new()));
        restart("steliad.service");
        machine.wait_state("isolated");
        assert_eq!(cpus(machine.described()["exclusive"].as_str().expect("a CPU list")), to);
        assert_isolated(&machine, 2);
    });
}

const RULE: &str = "/etc/polkit-1/rules.d/50-stelia-rebind.rules";
const REBINDS: &str = "/apis/isolation.stelia.io/v1alpha1/rebindresources";
const DROP_INS: &str = "/etc/systemd/system/stelia-publish.service.d";

/// The first block of this kind in the section of the page.
fn documented(kind: &str) -> String {
    let page = fs::read_to_string("/usr/share/doc/steliad/cluster/publish.md").expect("the page");
    let section = page.split_once("## RebindResources").expect("a section").1;
    let block = section
        .split_once(&format!("```{kind}\n"))
        .and_then(|(_, rest)| rest.split_once("```"));
    block.expect("a block").0.to_owned()
}

/// The object's status, once it is so.
fn until(what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let status = || Some(get(&format!("{REBINDS}/move"))?["status"].clone());
    let seen = || format!("{:?}\n{}", status(), journal("-u stelia-publish"));
    wait_until_or(what, seen, || {
        status().filter(|status| status.is_object() && is(status))
    })
}

#[test]
fn a_rebind_resource_moves_a_running_vm_where_polkit_lets_the_publisher_ask() {
    let undo = || {
        output("dpkg --purge stelia-publish");
        let _ = fs::remove_file(RULE);
        let _ = fs::remove_dir_all(DROP_INS);
        run("systemctl daemon-reload");
        output("systemctl stop polkit.service");
        apiserver::stop();
    };
    on_allocator_undoing(undo, &format!("publish = \"stelia\"\n{SETTINGS}"), || {
        let machine = fragmented();
        let identities = machine.threads().identities();

        apiserver::start();
        run("dpkg -i /job/stelia-publish.deb");
        apiserver::configure_package("stelia-publish");
        let node = run("hostname");
        let environment = format!("STELIA_START_SPREAD=0\nSTELIA_NODE_NAME={node}\nSTELIA_REBIND=true\n");
        put("/etc/stelia/publish/environment", environment);
        fs::create_dir_all(DROP_INS).expect(DROP_INS);
        put(format!("{DROP_INS}/rebind.conf"), documented("ini"));
        run("systemctl daemon-reload");
        restart("stelia-publish");
        let spec = json!({"nodeName": node, "rebindAction": "RebindCPU"});
        let version = "isolation.stelia.io/v1alpha1";
        let object =
            json!({"apiVersion": version, "kind": "RebindResource", "metadata": {"name": "move"}, "spec": spec});

        // No polkit rule yet.
        apiserver::ask(SERVER, "POST", REBINDS, &object.to_string()).expect("it is made");
        until("it is refused", |status| {
            status["reason"].to_string().contains("io.stelia.Isolation1.rebind")
        });
        assert_eq!(nodes(&machine.exclusive()).len(), 2);

        put(RULE, documented("js"));
        restart("polkit.service");
        let done = until("it has ended", |status| status["phase"] != "Pending");
        assert_eq!(done["phase"], "Succeed", "{done}");
        let machine = moved(machine);
        let to = machine.exclusive();
        assert_eq!((to.len(), nodes(&to).len()), (2, 1), "{to}");
        assert_eq!(done["moves"][0]["pod"], *machine.uid);
        assert_eq!(cpus(done["moves"][0]["to"].as_str().expect("a list")), to);
        assert_isolated(&machine, 2);
        assert_eq!(machine.threads().identities(), identities);
    });
}
