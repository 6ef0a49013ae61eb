//! The map as JSON.

use serde::{Serialize, Serializer};
use serde_json::{Map as Object, Value, json};
use stelia_kernel::locality::Device;

use super::marks::{mark, pool};
use super::{Core, Cpu, CpuOwner, Map, Pod};

impl Serialize for Map {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nodes = self
            .nodes
            .iter()
            .map(|(node, memory)| json!({ "node": node, "memory_bytes": memory }));
        let caches = self
            .caches
            .iter()
            .map(|cache| json!({ "level": 3, "cpus": cache.cpus, "size_bytes": cache.bytes }));
        json!({
            "host": self.host,
            "time_us": self.time_us,
            "nodes": nodes.collect::<Vec<_>>(),
            "caches": caches.collect::<Vec<_>>(),
            "cores": self.cores.iter().map(|core| self.core(core)).collect::<Vec<_>>(),
            "pods": self.pods.iter().enumerate().map(|(n, pod)| self.pod(n, pod)).collect::<Vec<_>>(),
            "devices_unknown": self.devices_unknown,
        })
        .serialize(serializer)
    }
}

impl Map {
    fn core(&self, core: &Core) -> Value {
        let cache = core.cache.and_then(|cache| self.caches.get(cache));
        json!({
            "socket": core.socket, "node": core.node, "l3": cache.map(|cache| &cache.cpus), "core": core.core,
            "cpus": core.cpus.iter().map(|cpu| self.cpu(cpu)).collect::<Vec<_>>(),
        })
    }

    fn cpu(&self, cpu: &Cpu) -> Value {
        let pod = match cpu.whose {
            CpuOwner::Pod(n) => self.pods.get(n).map(|pod| (n, pod)),
            _ => None,
        };
        let owner = match pod {
            Some((_, pod)) if pod.instance.is_some() => "instance",
            Some(_) => "pod",
            None => pool(cpu.whose)[3],
        };
        let mut object = identity(pod);
        object.insert("cpu".to_owned(), cpu.number.into());
        object.insert("owner".to_owned(), owner.into());
        object.insert("interrupted".to_owned(), self.interrupted.contains(cpu.number).into());
        Value::Object(object)
    }

    fn pod(&self, n: usize, pod: &Pod) -> Value {
        let instance = pod.instance.as_ref();
        let device = |device: &Device| json!({ "name": device.name, "node": device.node, "count": device.count, "remote": pod.is_remote(device) });
        let mut object = identity(Some((n, pod)));
        let class = instance.map(|instance| instance.class());
        let class = class.filter(|class| !class.is_empty());
        object.extend([
            ("cpus".to_owned(), json!(pod.cpus)),
            ("class".to_owned(), json!(class)),
            ("degraded".to_owned(), json!(pod.degraded())),
            ("devices".to_owned(), pod.devices.iter().map(device).collect()),
        ]);
        Value::Object(object)
    }
}

/// The pod, its mark on the map, and the state of its instance; null where there is none.
fn identity(pod: Option<(usize, &Pod)>) -> Object<String, Value> {
    let named = pod.map(|(_, pod)| &pod.pod);
    let instance = pod.and_then(|(_, pod)| pod.instance.as_ref());
    let members = [
        ("mark", json!(pod.map(|(n, _)| mark(n)))),
        ("pod_uid", json!(named.map(|pod| &pod.pod_uid))),
        ("pod_namespace", json!(named.map(|pod| &pod.pod_namespace))),
        ("pod_name", json!(named.map(|pod| &pod.pod_name))),
        ("container", json!(instance.map(|instance| &instance.container))),
        ("state", json!(instance.map(|instance| &instance.state))),
    ];
    let members = members.into_iter().map(|(name, value)| (name.to_owned(), value));
    members.collect()
}
