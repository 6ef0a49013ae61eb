//! VMs of other VMMs than QEMU, by `testing/vmm`, which is held to recordings of the real ones (they are not in Debian), and how the
//! daemon gets to know of a VM that nobody registers: KVM's uevents, as they arrive in the sandbox of its unit.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use stelia_kernel::kvm_events::{Change, KvmEvents, KvmMessage, VmEvent};
use test_vmm::recording::{self, Moment, Process, Recording};

use crate::support::*;

pub const TEST_VMM: &str = "/job/test-vmm";
/// The guest's memory, within the container.
const MEMORY: &str = "/tmp/guest";

/// A VMM that `test-vmm` can look like.
pub struct Shape {
    pub like: &'static str,
    /// The names of its vCPU threads without their numbers.
    pub vcpu: &'static str,
    recording: &'static str,
}

pub const SHAPES: [Shape; 3] = [
    Shape {
        like: "cloud-hypervisor",
        vcpu: "vcpu",
        recording: recording::CLOUD_HYPERVISOR,
    },
    Shape {
        like: "firecracker",
        vcpu: "fc_vcpu ",
        recording: recording::FIRECRACKER,
    },
    Shape {
        like: "crosvm",
        vcpu: "crosvm_vcpu",
        recording: recording::CROSVM,
    },
];

impl Shape {
    fn recording(&self) -> Recording {
        Recording::parse(self.recording).expect("a recording")
    }

    /// The recorded processes, without the threads that KVM makes on x86 alone, where they were recorded.
    fn expected(&self, moment: Moment) -> Option<Vec<Process>> {
        let mut processes = self.recording().at(moment)?.to_vec();
        if !cfg!(target_arch = "x86_64") {
            for process in &mut processes {
                process.threads.retain(|name| !name.starts_with("kvm-"));
            }
        }
        Some(processes)
    }
}

/// A pod whose container runs such a VMM, with 2 vCPUs, and whose guest runs.
fn start(shape: &Shape) -> Pod {
    let command = [TEST_VMM, "--like", shape.like, "--vcpus", "2", "--memory", MEMORY];
    let options = [Accel::Kvm.device(), &["--cpus", "2"]].concat();
    Pod::start(&format!("like-{}", shape.like), &options, &command).running()
}

/// Wait until the processes and threads are those that the real VMM had at this moment.
fn until_as_recorded(pod: &Pod, shape: &Shape, moment: Moment) {
    let expected = shape.expected(moment);
    assert!(expected.is_some(), "{moment:?} of {} is not recorded", shape.like);
    let seen = || processes(pod.pid);
    wait_until_or(
        &format!("{} is as the recording {moment:?}", pod.name),
        || format!(": {:#?}, expected {expected:#?}", seen()),
        || seen() == expected,
    );
}

/// Every thread of the container, once all have the names that they give themselves.
fn threads(pod: &Pod, shape: &Shape) -> Vec<Thread> {
    until_as_recorded(pod, shape, Moment::Booted);
    container_and_nested(pod.pid).into_values().flatten().collect()
}

fn number_of(threads: &[Thread], name: &str) -> u32 {
    let found = threads.iter().find(|thread| thread.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {threads:#?}")).tid
}

/// What a vCPU has counted, as its memory has it.
fn counted(pod: &Pod, vcpu: u64) -> u32 {
    let file = fs::File::open(pod.inside(MEMORY)).expect("the guest's memory");
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 0x2000 + 4 * vcpu).expect("a counter");
    u32::from_le_bytes(bytes)
}

fn assert_runs(pod: &Pod) {
    for vcpu in 0..2 {
        let before = counted(pod, vcpu);
        wait_until(&format!("vCPU {vcpu} of {} counts on", pod.name), || {
            counted(pod, vcpu) != before
        });
    }
}

const UNIT: &str = "kvm-events-test.service";
const UNIT_FILE: &str = "/run/systemd/system/kvm-events-test.service";
const HEARD: &str = "/run/kvm-events-test.txt";

/// A process with the sandbox of the daemon's unit that prints what it hears of KVM.
struct Listener {
    /// How much of it was looked at.
    lines: usize,
}

impl Listener {
    fn start() -> Self {
        // What starts and ends the daemon is left out, everything else is as it is installed.
        let unit = run("systemctl cat steliad.service");
        let own = ["Type", "BusName", "Sockets", "Exec", "Watchdog", "Restart", "Runtime"];
        let sandbox: Vec<&str> = unit
            .lines()
            .skip_while(|line| *line != "[Service]")
            .skip(1)
            .take_while(|line| *line != "[Install]")
            .filter(|line| !own.iter().any(|key| line.starts_with(key)))
            .collect();
        let me = std::env::current_exe().expect("own path");
        let text = format!(
            "[Service]\nType=exec\nEnvironment=STELIA_LISTEN=1\nStandardOutput=truncate:{HEARD}\n\
             ExecStart={} adopt_vmm::listener --exact --ignored --nocapture\n{}\n",
            me.display(),
            sandbox.join("\n")
        );
        assert_says(&text, &["PrivateNetwork=yes", "NoNewPrivileges=yes"]);
        put(UNIT_FILE, text);
        let _ = fs::remove_file(HEARD);
        run("systemctl daemon-reload");
        run(&["systemctl", "start", UNIT]);
        let status = || format!(": {}", journal(&["-u", UNIT]));
        wait_until_or("the listener listens", status, || {
            Self::said().iter().any(|line| line == "LISTENING")
        });
        Self { lines: 0 }
    }

    /// Also what another test left behind.
    fn stop() {
        let _ = output(&["systemctl", "stop", UNIT]);
        let _ = fs::remove_file(UNIT_FILE);
        let _ = output("systemctl daemon-reload");
        let _ = output(&["systemctl", "reset-failed", UNIT]);
    }

    fn said() -> Vec<String> {
        let text = fs::read_to_string(HEARD).unwrap_or_default();
        // The last line may still be on its way.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(str::to_owned).collect()
    }

    /// The next thing it hears.
    fn next(&mut self, what: &str) -> KvmMessage {
        wait_until_or(
            what,
            || format!(", only {:?}", Self::said()),
            || {
                let said = Self::said();
                let mut new = said.iter().enumerate().skip(self.lines);
                let (at, heard) = new.find_map(|(at, line)| Some((at, line.split_once("HEARD ")?.1.to_owned())))?;
                self.lines = at + 1;
                Some(parse(&heard))
            },
        )
    }

    fn next_vm(&mut self, what: &str) -> VmEvent {
        match self.next(what) {
            KvmMessage::Vm(event) => event,
            KvmMessage::Lost => panic!("{what}: events were dropped: {:?}", Self::said()),
        }
    }

    fn pid() -> u32 {
        number(&main_pid(UNIT))
    }
}

fn print(heard: KvmMessage) {
    match heard {
        KvmMessage::Vm(event) => {
            let change = match event.change {
                Change::Created => "created",
                Change::Destroyed => "destroyed",
            };
            println!("HEARD {change} {} {} {}", event.thread, event.created, event.count);
        }
        KvmMessage::Lost => println!("HEARD lost"),
    }
}

fn parse(text: &str) -> KvmMessage {
    let words: Vec<&str> = text.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let change = match words[0] {
        "created" => Change::Created,
        "destroyed" => Change::Destroyed,
        _ => return KvmMessage::Lost,
    };
    KvmMessage::Vm(VmEvent {
        change,
        thread: i32::try_from(number(1)).expect("a thread"),
        created: number(2),
        count: number(3),
    })
}

/// Runs in the sandbox.
#[test]
#[ignore = "the other tests start it as a process"]
fn listener() {
    if std::env::var("STELIA_LISTEN").is_err() {
        return;
    }
    block_on(async {
        let mut events = KvmEvents::listen().expect("a socket");
        println!("LISTENING");
        loop {
            print(events.next().await.expect("an event"));
        }
    });
}

/// What root may have the kernel report at any time, of the device as it is.
fn report_once_more() {
    fs::write("/sys/class/misc/kvm/uevent", "change").expect("uevent");
}

#[test]
fn a_vm_of_any_vmm_is_heard_to_begin_and_to_end_in_the_daemons_sandbox() {
    needs_kvm();
    on_node_undoing(Listener::stop, || {
        let mut listener = Listener::start();
        let own = |pid: u32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a namespace");
        assert_ne!(own(Listener::pid(), "net"), own(1, "net"), "PrivateNetwork=yes");
        report_once_more();
        let mut created = None;
        for shape in &SHAPES {
            let pod = start(shape);
            let threads = threads(&pod, shape);
            let creator = number_of(&threads_of(pod.pid), &shape.recording().vm_created_by).cast_signed();
            let began = listener.next_vm(&format!("a VM like {}'s", shape.like));
            println!("  {}: {began:?}", shape.like);
            assert_eq!(
                (began.change, began.thread, began.count),
                (Change::Created, creator, 1),
                "{threads:#?}"
            );
            assert!(created.is_none_or(|before| before + 1 == began.created), "{created:?}");
            created = Some(began.created);
            // It is the node's number of the thread: the container counts its own from 1.
            assert_eq!(numbers(creator).len(), 2, "{creator}");
            assert_runs(&pod);
            pod.delete(10);
            let ended = listener.next_vm(&format!("the end of a VM like {}'s", shape.like));
            let expected = VmEvent {
                change: Change::Destroyed,
                count: 0,
                ..began
            };
            assert_eq!(ended, expected, "{:?}", Listener::said());
        }
        // The real thing, started by nobody who registers, and killed. The next VM's event ends those of it: they may be more than two, as
        // QEMU of arm64 makes further VMs to read what vCPUs can have.
        let options = [Accel::Kvm.device(), &["--cpus", "2"]].concat();
        let qemu = Pod::start("bare", &options, &Accel::Kvm.qemu());
        wait_until("QEMU's vCPU is there", || {
            let threads = threads_of(qemu.pid);
            threads.iter().any(|thread| thread.name.ends_with("/KVM"))
        });
        qemu.kill();
        let next = start(&SHAPES[1]);
        let mut of_qemu = Vec::new();
        loop {
            let event = listener.next_vm("QEMU's VM, its end, and the next VM");
            if event.thread == next.pid.cast_signed() {
                break;
            }
            of_qemu.push(event);
        }
        println!("  {of_qemu:?}");
        assert!(of_qemu.len() == 2 || cfg!(target_arch = "aarch64"), "{of_qemu:?}");
        let mut count = 0;
        for event in &of_qemu {
            match event.change {
                Change::Created => count += 1,
                Change::Destroyed => count -= 1,
            }
            assert_eq!(
                (event.thread, event.count),
                (qemu.pid.cast_signed(), count),
                "{of_qemu:?}"
            );
        }
        let first = of_qemu.first().map(|event| event.change);
        assert_eq!((first, count), (Some(Change::Created), 0), "{of_qemu:?}");
    });
}

#[test]
fn threads_and_processes_are_as_recorded_of_the_vmm_that_is_looked_like() {
    needs_kvm();
    on_node(|| {
        for shape in &SHAPES {
            let pod = start(shape);
            let found = threads(&pod, shape);
            println!(
                "  {}: {:?}",
                shape.like,
                found.iter().map(|one| &one.name).collect::<Vec<_>>()
            );
            let own: Vec<u32> = threads_of(pod.pid).iter().map(|thread| thread.tid).collect();
            for vcpu in 0..2 {
                assert!(
                    own.contains(&number_of(&found, &format!("{}{vcpu}", shape.vcpu))),
                    "{found:#?}"
                );
            }
            // Nobody registered it: it is where its runtime put it.
            assert!(found.iter().all(|thread| thread.cgroup == pod.origin()), "{found:#?}");
            assert_runs(&pod);
            if shape.recording().at(Moment::ShutDown).is_some() {
                kill("-USR1", pod.pid);
                until_as_recorded(&pod, shape, Moment::ShutDown);
                kill("-USR2", pod.pid);
                until_as_recorded(&pod, shape, Moment::BootedAgain);
            }
            pod.delete(0);
        }
    });
}

#[test]
fn a_listener_that_was_not_read_is_told_so_once_and_hears_the_next_vm() {
    needs_kvm();
    on_node_undoing(Listener::stop, || {
        let mut listener = Listener::start();
        let table = PathBuf::from(format!("/proc/{}/net/netlink", Listener::pid()));
        // Protocol 15 is that of uevents; the ninth column counts what was dropped.
        let dropped = || {
            let text = read(&table);
            let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let counts = rows
                .filter(|row| row.get(1) == Some(&"15"))
                .filter_map(|row| row[8].parse::<u64>().ok());
            counts.sum::<u64>()
        };
        run(&["systemctl", "kill", "-s", "STOP", UNIT]);
        let mut reports = 0;
        while dropped() == 0 {
            assert!(reports < 20_000, "nothing is dropped: {}", read(&table));
            report_once_more();
            reports += 1;
        }
        println!("  dropped after {reports} reports");
        run(&["systemctl", "kill", "-s", "CONT", UNIT]);
        assert_eq!(listener.next("that events were dropped"), KvmMessage::Lost);
        let pod = start(&SHAPES[1]);
        let began = listener.next_vm("the VM after that");
        assert_eq!((began.change, began.thread), (Change::Created, pod.pid.cast_signed()));
    });
}
