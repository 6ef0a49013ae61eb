//! The node's kernel as files, for programs that read `/proc` and `/sys/fs/cgroup` without the traits.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use stelia_cpus::CpuSet;
use stelia_kernel::cgroup::{CgroupPath, File};

use super::procs::Task;
use super::{Model, State};

/// The files of a cgroup that are written, where it has them.
const FILES: [File; 9] = [
    File::Procs,
    File::Threads,
    File::Type,
    File::Events,
    File::CpuStat,
    File::Cpus,
    File::CpusEffective,
    File::CpusExclusive,
    File::Partition,
];

/// What was written last, to be removed when it is gone from the model.
#[derive(Debug, Default)]
pub struct KernelFiles(BTreeSet<PathBuf>);

impl KernelFiles {
    /// Writes cgroups, the tasks of pods, and the mask of the unbound workers as they are now, into `proc` and `sys` of the node's directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&mut self, model: &Model) -> io::Result<()> {
        let state = model.lock();
        let cgroups = state.directory.join("sys/fs/cgroup");
        let mut now = BTreeSet::new();
        for cgroup in state.groups.keys() {
            let folder = cgroups.join(cgroup.as_str().trim_start_matches('/'));
            fs::create_dir_all(&folder)?;
            for file in FILES {
                if let Ok(text) = state.read_file(cgroup, file) {
                    fs::write(folder.join(file.name()), text + "\n")?;
                }
            }
            now.insert(folder);
        }
        let pods = ["kubepods.slice", "stelia.slice"].map(|slice| CgroupPath::root().child(slice));
        for (id, task) in &state.tasks {
            if pods.iter().any(|slice| task.cgroup.is_within(slice)) {
                let own = state.directory.join(format!("proc/{id}"));
                for folder in [own.clone(), own.join(format!("task/{id}")), thread(&state, *id, task)] {
                    state.write_task(&folder, *id, task)?;
                }
                now.insert(own);
            }
        }
        for gone in self.0.difference(&now) {
            match fs::remove_dir_all(gone) {
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
                _ => {}
            }
        }
        self.0 = now;
        let mask = state.directory.join("sys/devices/virtual/workqueue/cpumask");
        let workers = CpuSet::from_mask(fs::read_to_string(&mask)?.trim()).unwrap_or_default();
        fs::write(&mask, workers.difference(&state.isolated()).to_mask() + "\n")
    }
}

/// Where a process has its thread.
fn thread(state: &State, id: i32, task: &Task) -> PathBuf {
    state.directory.join(format!("proc/{}/task/{id}", task.process))
}

impl State {
    fn write_task(&self, folder: &Path, id: i32, task: &Task) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let runs_on = self.runs_on(task);
        let numbers: Vec<String> = task.numbers.iter().map(i32::to_string).collect();
        let fields = (4..=52).map(|field| match field {
            22 => task.start,
            39 => runs_on.iter().next().unwrap_or_default().into(),
            _ => 0,
        });
        let fields: Vec<String> = fields.map(|value: u64| value.to_string()).collect();
        let (name, numbers, process) = (&task.name, numbers.join("\t"), task.process);
        for (file, text) in [
            ("comm", name.clone()),
            ("cgroup", format!("0::{}", task.cgroup)),
            ("schedstat", "0 0 0".to_owned()),
            ("stat", format!("{id} ({name}) S {}", fields.join(" "))),
            (
                "status",
                format!("Name:\t{name}\nTgid:\t{process}\nNSpid:\t{numbers}\nCpus_allowed_list:\t{runs_on}"),
            ),
        ] {
            fs::write(folder.join(file), text + "\n")?;
        }
        Ok(())
    }
}
