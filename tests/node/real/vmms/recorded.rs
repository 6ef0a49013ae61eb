//! The VMM's processes and threads step by step, compared with the recording of its version.

use std::cell::RefCell;
use std::sync::mpsc::channel;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use stelia_kernel::kvm_events::{Change, KvmEvents, KvmMessage};
use test_vmm::recording::{Moment, Recording, Step, Vmm};

use super::{Vm, guest, options};
use crate::real::program;
use crate::support::*;

/// Threads that have not changed for so long are those of a step.
const STEADY: Duration = Duration::from_millis(200);

pub struct Recorder {
    vm_created_by: JoinHandle<String>,
    steps: RefCell<Vec<Step>>,
}

impl Recorder {
    /// Call it before the VMM starts: the next VM that is created on the node is taken for the VMM's.
    pub fn start() -> Self {
        let (listens, listening) = channel();
        let vm_created_by = spawn(move || {
            block_on(async {
                let mut events = KvmEvents::listen().expect("a socket");
                listens.send(()).expect("somebody waits");
                loop {
                    if let KvmMessage::Vm(event) = events.next().await.expect("an event")
                        && event.change == Change::Created
                    {
                        return comm(event.thread);
                    }
                }
            })
        });
        listening.recv().expect("the listener listens");
        let steps = RefCell::default();
        Self { vm_created_by, steps }
    }
}

impl Vm {
    /// Note the processes and threads of this moment, where they are recorded.
    pub fn record(&self, moment: Moment) {
        let Some(recorder) = &self.recorder else { return };
        let seen = || format!(": {:#?}", self.threads());
        let processes = wait_until_or(&format!("its threads {moment:?}"), seen, || {
            let before = processes(self.process()?)?;
            sleep(STEADY);
            (processes(self.process()?)? == before).then_some(before)
        });
        recorder.steps.borrow_mut().push(Step { moment, processes });
    }

    /// Compares the whole life with the recording. If they differ, the new recording is printed (docs/real.md).
    pub fn assert_as_recorded(self) {
        let Some(recorder) = self.recorder else { return };
        let seen = Recording {
            program: self.vmm.name().to_owned(),
            version: version(self.vmm),
            options: options(self.vmm, &guest::words(self.vmm)).join(" "),
            vm_created_by: recorder.vm_created_by.join().expect("the listener"),
            steps: recorder.steps.into_inner(),
        };
        let recorded = self.vmm.recording().expect("a recording");
        if seen != recorded {
            let text = serde_json::to_string_pretty(&seen).expect("JSON");
            println!("RECORDING BEGINS\n{text}\nRECORDING ENDS");
        }
        let (is_as_recorded, name) = (seen == recorded, self.vmm.name());
        assert!(
            is_as_recorded,
            "{name} is not as recorded: docs/real.md, \"A new version\""
        );
    }
}

/// As it says itself: `Firecracker v1.16.1`.
fn version(vmm: Vmm) -> String {
    let option = if vmm == Vmm::Crosvm { "version" } else { "--version" };
    let text = utf8(&output(&[&program(vmm.name()).display().to_string(), option]).stdout);
    let last = text.lines().next().and_then(|line| line.split(' ').next_back());
    last.unwrap_or_default().trim_start_matches('v').to_owned()
}
