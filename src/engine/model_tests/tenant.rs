//! What a pod is told at its own entry point while its neighbour's VM, and the node, are not as they must be: whatever it asks,
//! nothing in any answer or signal is the neighbour's.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt as _;
use proptest::prelude::*;
use serde::Serialize;
use stelia_api::{MANAGER_PATH, instance_path};
use stelia_kubelet::ContainerCgroup;
use tokio::net::UnixListener;
use zbus::{Connection, DynamicType, Fd, MessageStream, Variant};
use zbus_xml::Node as Contract;

use super::*;
use crate::dbus::serve_runner_socket_as;

const MANAGER: &str = "io.stelia.Isolation1.Manager";
const INSTANCE: &str = "io.stelia.Isolation1.Instance";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// What may be amiss.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    AnchorEnds,
    VcpuEnds,
    CpuGoesOffline,
    PartitionIsChanged,
    MemoryShrinks,
    KubeletsFileBreaks,
    /// kubelet gives the pod's own CPUs to the neighbour as well.
    KubeletGivesAway,
}

fn trouble() -> impl Strategy<Value = Trouble> {
    use Trouble::*;
    proptest::sample::select(vec![
        AnchorEnds,
        VcpuEnds,
        CpuGoesOffline,
        PartitionIsChanged,
        MemoryShrinks,
        KubeletsFileBreaks,
        KubeletGivesAway,
    ])
}

/// A neighbour whose VM ran well, on CPUs 4-5.
struct Neighbour {
    pod: Pod,
    qemu: Qemu,
}

impl Neighbour {
    fn suffers(&self, node: &mut Node, trouble: Trouble) {
        let Self { pod, qemu } = self;
        // What ended or is offline already does not do so again.
        match trouble {
            Trouble::AnchorEnds => drop(node.model.end(pod.anchor)),
            Trouble::VcpuEnds => drop(node.model.end(qemu.vcpus[1])),
            Trouble::CpuGoesOffline => node.model.hotplug(&cpus("0-4,6-7")).unwrap(),
            Trouble::PartitionIsChanged => drop(node.model.meddle(&vcpu(pod), File::Partition, "member")),
            Trouble::MemoryShrinks => {
                node.model.uses_memory(&scope(pod), 3_000_000).unwrap();
                // The origin is gone where the anchor ended before.
                drop(node.model.meddle(&pod.origin, File::MemoryMax, "4096"));
            }
            Trouble::KubeletsFileBreaks => {
                let text = format!(r#"{{"policyName":"static","{}":"4-5"}}"#, pod.uid);
                node.checkpoint.write_bytes(text.as_bytes()).unwrap();
            }
            Trouble::KubeletGivesAway => {
                node.checkpoint.release(&uid(1)).unwrap();
                node.checkpoint.admit(&pod.uid, "second", &cpus("2-3")).unwrap();
            }
        }
    }

    /// Whether a text has something that is the neighbour's alone; what.
    fn is_in(&self, text: &str) -> Option<String> {
        let id = ContainerCgroup::parse(self.pod.origin.as_str()).unwrap().container_id;
        let object = instance_path(&self.pod.uid);
        let names = [self.pod.uid.as_str(), &id, object.as_str(), self.pod.origin.as_str()];
        let numbers = [
            self.pod.init,
            self.pod.anchor,
            self.pod.other,
            self.qemu.pid,
            self.qemu.io,
        ];
        let numbers = numbers.iter().chain(&self.qemu.vcpus).map(i32::to_string);
        let numbers: Vec<String> = numbers.collect();
        let own = cpus("4-5");
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == ',';
        let word = |word: &&str| {
            let list = word.contains(['-', ',']) && word.parse::<CpuSet>().is_ok_and(|list| !list.is_disjoint(&own));
            list || numbers.iter().any(|number| number == word)
        };
        let named = names.into_iter().find(|name| text.contains(name));
        let mut words = text
            .split(|c: char| !is_word(c))
            .map(|word| word.trim_matches([',', '-']));
        named.or_else(|| words.find(word)).map(str::to_owned)
    }
}

/// A pod's connection, with everything that came over it.
struct PodConnection {
    connection: Connection,
    came: MessageStream,
    asked: std::collections::BTreeSet<String>,
}

impl PodConnection {
    async fn open(node: &Node, pod: &Pod) -> Self {
        let path = node.directory.path().join("runner");
        let listener = UnixListener::bind(&path).unwrap();
        let runner = Arc::new(node.model.pidfd(pod.init).unwrap());
        let (handle, cancel) = (node.handle.clone(), node.cancel.clone());
        tokio::spawn(serve_runner_socket_as(listener, runner, handle, cancel));
        let address = format!("unix:path={}", path.display());
        let connection = zbus::connection::Builder::address(address.as_str()).p2p().build();
        let connection = connection.await.unwrap();
        Self {
            came: MessageStream::from(&connection),
            connection,
            asked: Default::default(),
        }
    }

    /// The answer is in what came, whichever it is. A call that is not answered at once is left alone.
    async fn ask<B: Serialize + DynamicType>(&mut self, path: &str, interface: &str, method: &str, body: &B) {
        self.asked.insert(format!("{interface}.{method}"));
        let call = self
            .connection
            .call_method(None::<&str>, path, Some(interface), method, body);
        let _ = tokio::time::timeout(Duration::from_secs(2), call).await;
        // Twenty a second are let through.
        tokio::time::sleep(Duration::from_millis(60)).await;
    }

    /// Every method of the contract, with what a pod might hope to learn by.
    async fn ask_everything(&mut self, node: &Node, pod: &Pod, neighbour: &Neighbour) {
        let none = || HashMap::<&str, Variant<'_>>::new();
        let (theirs, object) = (neighbour.pod.uid.as_str(), instance_path(&pod.uid));
        let object = object.as_str();
        self.ask(MANAGER_PATH, MANAGER, "ListInstances", &()).await;
        self.ask(MANAGER_PATH, MANAGER, "GetInstance", &pod.uid.as_str()).await;
        self.ask(MANAGER_PATH, MANAGER, "GetInstanceByPID", &(pod.init as u32))
            .await;
        self.ask(MANAGER_PATH, MANAGER, "Describe", &()).await;
        self.ask(MANAGER_PATH, MANAGER, "NodeTopology", &(none(),)).await;
        let requests: Vec<HashMap<&str, Variant<'_>>> = vec![none()];
        self.ask(MANAGER_PATH, MANAGER, "EvaluatePlacement", &(requests, none()))
            .await;
        self.ask(MANAGER_PATH, MANAGER, "Reconcile", &(none(),)).await;
        self.ask(MANAGER_PATH, MANAGER, "Rebind", &("node", 0u32, none())).await;
        self.ask(MANAGER_PATH, MANAGER, "Resize", &(pod.uid.as_str(), 1u32, none()))
            .await;
        self.ask(MANAGER_PATH, MANAGER, "Reload", &()).await;
        let rule = "[[adopt]]\nuse = \"qemu\"";
        self.ask(MANAGER_PATH, MANAGER, "PreviewAdoption", &(rule, none()))
            .await;
        for of in ["", theirs] {
            self.ask(MANAGER_PATH, MANAGER, "Ledger", &(of, 0u64, 0u64, none()))
                .await;
        }
        self.ask(MANAGER_PATH, MANAGER, "VerifyLedger", &(none(),)).await;
        self.ask(object, INSTANCE, "Ledger", &(0u64, 0u64, none())).await;
        self.ask(object, INSTANCE, "Attribute", &(none(),)).await;
        let anchor = node.model.pidfd(neighbour.pod.other).unwrap();
        let stolen = || HashMap::from([("anchor", Variant::from(Fd::from(&anchor)))]);
        for claimed in ["", theirs] {
            self.ask(MANAGER_PATH, MANAGER, "RegisterInstance", &(claimed, "", stolen()))
                .await;
        }
        let qemu = node.model.pidfd(neighbour.qemu.pid).unwrap();
        let vcpus: Vec<(u32, i32, HashMap<&str, Variant<'_>>)> = vec![(0, 1, none())];
        self.ask(object, INSTANCE, "AttachVcpus", &(Fd::from(&qemu), vcpus, none()))
            .await;
        self.ask(object, INSTANCE, "Audit", &(none(),)).await;
        for (path, interface) in [(MANAGER_PATH, MANAGER), (object, INSTANCE)] {
            self.ask(path, PROPERTIES, "GetAll", &(interface,)).await;
        }
        for name in [
            "AdmissionProblem",
            "KubeletProblem",
            "DriftFound",
            "DriftRepaired",
            "LedgerKey",
            "SharedCPUs",
            "Version",
            "VmCapacity",
        ] {
            self.ask(MANAGER_PATH, PROPERTIES, "Get", &(MANAGER, name)).await;
        }
        let tree = "org.freedesktop.DBus.ObjectManager";
        self.ask(MANAGER_PATH, tree, "GetManagedObjects", &()).await;
        self.ask(object, INSTANCE, "Deregister", &(none(),)).await;
        self.ask(MANAGER_PATH, MANAGER, "Deregister", &("", none())).await;
    }

    /// Everything that came, as it came.
    async fn heard(mut self) -> Vec<String> {
        let mut heard = Vec::new();
        while let Ok(Some(Ok(message))) = tokio::time::timeout(Duration::from_millis(300), self.came.next()).await {
            heard.push(String::from_utf8_lossy(message.data()).into_owned());
        }
        heard
    }
}

/// Every method of both interfaces, by the contract.
fn methods() -> Vec<String> {
    let contracts = [
        include_str!("../../../dbus-interfaces/io.stelia.Isolation1.Manager.xml"),
        include_str!("../../../dbus-interfaces/io.stelia.Isolation1.Instance.xml"),
    ];
    let of = |text: &str| -> Vec<String> {
        let contract = Contract::try_from(text).unwrap();
        let interface = &contract.interfaces()[0];
        let methods = interface.methods();
        methods
            .map(|method| format!("{}.{}", interface.name(), method.name()))
            .collect()
    };
    contracts.into_iter().flat_map(of).collect()
}

/// How far the pod itself is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Started,
    Registered,
    Isolated,
}

async fn play(stage: Stage, troubles: &[Trouble]) {
    let mut node = Node::new();
    let pod = node.pod(1, "2-3");
    let (other, qemu) = node.isolated(2, "4-5").await;
    let neighbour = Neighbour { pod: other, qemu };
    if stage != Stage::Started {
        node.register(&pod).await.unwrap();
    }
    if stage == Stage::Isolated {
        node.started(&pod, 2).await;
    }
    let mut connection = PodConnection::open(&node, &pod).await;
    for trouble in troubles {
        neighbour.suffers(&mut node, *trouble);
    }
    let soon = Duration::from_secs(20);
    let operators = tokio::time::timeout(soon, node.reconcile()).await.unwrap();
    // There is something to be found: the operator is told of it.
    if troubles.iter().any(|trouble| matches!(trouble, Trouble::AnchorEnds)) {
        let pods = operators.degraded.iter().filter_map(|(whom, _)| whom.pod());
        assert!(
            pods.clone().any(|pod| neighbour.is_in(pod.as_str()).is_some()),
            "{operators:?}"
        );
    }
    // What a registration of its own is refused with, kubelet's file being as it is; it is refused without waiting for
    // the file.
    let tenant = node.handle.on_behalf_of(&pod.uid);
    let again = tokio::time::timeout(soon, tenant.register(node.request(&pod))).await;
    if let Err(refusal) = again.unwrap() {
        let told = tenant.restrict(refusal).to_string();
        assert_eq!(neighbour.is_in(&told), None, "{troubles:?}: {told}");
    }
    connection.ask_everything(&node, &pod, &neighbour).await;
    let missing: Vec<String> = methods()
        .into_iter()
        .filter(|name| !connection.asked.contains(name))
        .collect();
    assert_eq!(missing, Vec::<String>::new(), "of the contract, not asked");
    let heard = connection.heard().await;
    assert!(heard.len() > 15, "{heard:?}");
    for text in &heard {
        assert_eq!(neighbour.is_in(text), None, "{troubles:?}: {text:?}");
    }
}

#[test]
fn what_is_looked_for_would_be_found() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut node = Node::new();
        let (pod, qemu) = node.isolated(2, "4-5").await;
        let neighbour = Neighbour { pod, qemu };
        let (uid, pid) = (&neighbour.pod.uid, neighbour.qemu.pid);
        for text in [
            format!("pod {uid}:"),
            format!("process {pid} ended"),
            "CPUs 0,4 are".into(),
            instance_path(uid),
        ] {
            assert!(neighbour.is_in(&text).is_some(), "{text}");
        }
        assert_eq!(neighbour.is_in("float has 0-1,6-7, of 4 CPUs"), None);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn nothing_of_a_degraded_neighbour_is_in_anything_that_a_pod_is_told(
        stage in prop_oneof![Just(Stage::Started), Just(Stage::Registered), Just(Stage::Isolated)],
        troubles in proptest::collection::vec(trouble(), 1..4),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(stage, &troubles));
    }
}
