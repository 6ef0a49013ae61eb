//! steliad beside Cloud Hypervisor, Firecracker and crosvm: adopted in each way, and but for crosvm started by the runner, through all that their
//! API does to a guest. What their processes and threads are at each step is held to `testing/vmm/recordings/`.

mod adopted;
mod crosvm;
mod guest;
mod in_place;
mod life;
mod passed_through;
mod recorded;
mod resize;
mod runner;

use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use test_vmm::recording::Vmm;

use crate::real::program;
use crate::support::http::{Answer, exchange};
use crate::support::*;
use recorded::Recorder;

/// Of the container: Cloud Hypervisor boots 2 vCPUs and is given a third.
const CPUS: &str = "3";
const SOCKET: &str = "/run/api";
/// An emulated VMM that writes a snapshot takes this long at most.
const API_PATIENCE: Duration = Duration::from_secs(60);

/// How its CPUs come to be its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Adopted, in `stelia.slice`.
    Slice,
    /// Adopted, in the container's own cgroup.
    InPlace,
    /// Adopted, the container's own cgroup as the partition.
    Container,
    /// Started by `stelia-runner`, in `stelia.slice`.
    Runner,
}

fn released(vmm: Vmm) -> &'static str {
    match vmm {
        Vmm::CloudHypervisor => "cloud-hypervisor-static",
        Vmm::Firecracker => "firecracker-v1.16.1-x86_64",
        Vmm::Crosvm => "crosvm",
    }
}

fn options(vmm: Vmm, words: &[String]) -> Vec<String> {
    let path = format!("path={SOCKET}");
    let socket = match vmm {
        Vmm::CloudHypervisor => vec!["--api-socket", &path],
        Vmm::Firecracker => vec!["--api-sock", SOCKET],
        Vmm::Crosvm => vec!["--no-syslog", "run", "--socket", SOCKET],
    };
    socket.into_iter().map(str::to_owned).chain(words.to_vec()).collect()
}

fn command(vmm: Vmm, program: &str, words: &[String]) -> String {
    let words = options(vmm, words).into_iter().map(|word| format!("'{word}'"));
    format!("{program} {}", words.collect::<Vec<_>>().join(" "))
}

struct Vm {
    vmm: Vmm,
    way: Way,
    pod: Pod,
    /// The guest's sign of life when its snapshot was taken.
    saved: Cell<u32>,
    /// Of a VM in the slice.
    recorder: Option<Recorder>,
}

impl Vm {
    /// Adopted: a shell that stays starts the VMM, by the name that its release has.
    fn start(vmm: Vmm, way: Way) -> Self {
        let recorder = (way == Way::Slice).then(Recorder::start);
        let mut vm = Self::start_words(vmm, way, &guest::words(vmm));
        vm.recorder = recorder;
        vm
    }

    fn start_words(vmm: Vmm, way: Way, words: &[String]) -> Self {
        let boot = command(vmm, &format!("/tmp/{}", released(vmm)), words);
        let (file, name) = (program(vmm.name()), released(vmm));
        let file = file.display();
        let script = format!("ln -s {file} /tmp/{name}; {boot} & wait $!; echo \"the VMM ended: $?\"; sleep 100000");
        guest::make();
        let runtime: &[&str] = match way {
            Way::InPlace => &["--runtime", "runc"],
            _ => &[],
        };
        let options = [Accel::Kvm.device(), &["--cpus", CPUS], runtime].concat();
        let name = format!("{}-{way:?}", vmm.name()).to_lowercase();
        Self::of(vmm, way, Pod::start(&name, &options, &["sh", "-c", &script]))
    }

    /// By the runner with these options, the VMM with these words; in a pod with the stand-in's options.
    fn by_runner(vmm: Vmm, name: &str, options: &[&str], runner: &[&str], words: &[&str]) -> Self {
        let file = program(vmm.name()).display().to_string();
        let command = [
            &["stelia-runner", "run", "--api-socket", SOCKET],
            runner,
            &["--", &file],
            words,
        ]
        .concat();
        let options = [Accel::Kvm.device(), options].concat();
        Self::of(vmm, Way::Runner, Pod::start(name, &options, &command))
    }

    fn of(vmm: Vmm, way: Way, pod: Pod) -> Self {
        Self {
            vmm,
            way,
            pod,
            saved: Cell::new(0),
            recorder: None,
        }
    }

    fn note(&self, step: &str, seen: &str) {
        println!("  {:?}, {}: {step}: {seen}", self.way, self.vmm.name());
    }

    fn api(&self) -> Api {
        Api(self.pod.inside(SOCKET))
    }

    fn tell_crosvm(&self, words: &[&str]) -> Answer {
        let crosvm = program("crosvm").display().to_string();
        let socket = self.pod.inside(SOCKET).display().to_string();
        let out = output(&[&[crosvm.as_str(), "--no-syslog"][..], words, &[socket.as_str()]].concat());
        Answer {
            status: if out.status.success() { 200 } else { 500 },
            body: utf8(&out.stderr),
        }
    }

    fn threads(&self) -> Threads {
        let all = container_and_nested(self.pod.pid).into_values().flatten();
        let (vcpus, others) = all.partition(|thread| self.vmm.is_vcpu(&thread.name));
        Threads {
            vcpus,
            others,
            ..Threads::default()
        }
    }

    /// The VMM's process, while it lives.
    fn process(&self) -> Option<u32> {
        let name: String = self.vmm.name().chars().take(15).collect();
        let mut all = container_and_nested(self.pod.pid).into_iter();
        let found = all.find(|(pid, threads)| {
            let first = threads.iter().find(|thread| thread.tid == *pid);
            first.is_some_and(|first| first.name.starts_with(&name)) && threads.len() > 1
        });
        found.map(|(pid, _)| pid)
    }

    /// The container's process that stays in the container's own cgroup.
    fn is_anchor(&self, thread: &Thread) -> bool {
        match self.way {
            Way::Slice => thread.tid == self.pod.pid,
            Way::Runner => read_if_there(format!("/proc/{}/cmdline", thread.tid)).contains("\0anchor"),
            Way::InPlace | Way::Container => false,
        }
    }

    /// How the container differs from a VM isolated with this many vCPUs; `None` if it does not.
    fn wrong(&self, vcpus: usize) -> Option<String> {
        let threads = self.threads();
        if threads.vcpus.len() != vcpus {
            return Some(format!("not {vcpus} vCPU threads: {threads:#?}"));
        }
        let state = self.pod.state();
        if state.as_deref() != Some("isolated") {
            return Some(format!("{state:?}, {:?}", refused(&self.pod)));
        }
        match self.way {
            Way::Container if !is_partition(&self.pod) => Some("not a partition".into()),
            Way::Container => moved_thread(&self.pod).map(|thread| format!("{thread:?}")),
            _ if self.pod.is_in_place() != (self.way == Way::InPlace) => Some("in the wrong tree".into()),
            _ => {
                let shared = near_pool(&self.pod);
                wrong(&self.pod, &threads.vcpus, &threads.others, &shared, |one| {
                    self.is_anchor(one)
                })
            }
        }
    }

    /// Wait until all is as promised, and hold `steliactl verify` to saying so.
    fn until_isolated(&self, step: &str, vcpus: usize) -> Threads {
        let seen = || format!(": {:?}\n{}", self.wrong(vcpus), self.pod.logs());
        wait_until_or(&format!("{step}: isolated"), seen, || {
            let ended = thread(self.pod.pid).is_none();
            assert!(!ended, "the container ended:\n{}", self.pod.logs());
            self.wrong(vcpus).is_none()
        });
        // It may fail for a moment: the daemon learns later than the kernel that a vCPU was unplugged.
        let said = || self.pod.verified().1;
        wait_until_or(&format!("{step}: verified"), said, || self.pod.verified().0);
        self.threads()
    }

    /// Waits until the VM has no CPU, cgroup or instance any more.
    fn until_given_back(&self, step: &str) {
        let exclusive = self.pod.exclusive();
        let seen = || format!(": {:?}, {} in partitions", self.pod.state(), partitioned());
        wait_until_or(&format!("{step}: given back"), seen, || {
            self.pod.state().is_none() && partitioned().is_disjoint(&exclusive)
        });
        assert!(!self.pod.scope().exists(), "{step}");
    }
}

/// The API socket of a VMM, which is asked by HTTP.
struct Api(PathBuf);

impl Api {
    /// Whether anything answers: the VMM binds the socket some time after its start.
    fn is_there(&self) -> bool {
        UnixStream::connect(&self.0).is_ok()
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let asked = UnixStream::connect(&self.0).and_then(|stream| {
            stream.set_read_timeout(Some(API_PATIENCE))?;
            let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost");
            exchange(&stream, &stream, &head, body)
        });
        asked.unwrap_or_else(|error| panic!("{method} {path} on {}: {error}", self.0.display()))
    }

    /// The answer to a request that must not be refused, as JSON where it has a body.
    fn must(&self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.ask(method, path, body);
        assert!(answer.is_success(), "{method} {path}: {answer:?}");
        serde_json::from_str(&answer.body).unwrap_or_default()
    }
}
