//! One mask written, and what the kernel may answer.

use std::collections::BTreeSet;

use rustix::io::Errno;
use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;
use stelia_text::excerpt::cause;

use super::{Memory, Task, report_problem};
use crate::base::Record;
use crate::files::System;
use crate::interrupts::{DEFAULT, mask_path};
use crate::plan::Cpus;

/// The kernel answers EBUSY while an interrupt is on its way to another CPU, which takes as long as one interrupt does.
const MAX_WRITE_ATTEMPTS: u32 = 3;

/// What became of a mask.
pub(super) enum Outcome {
    /// It is as wanted, be it that nothing had to be written.
    Set(CpuSet),
    /// It is another one that disturbs no VM, because at the wanted place no vector is left.
    StandIn(CpuSet),
    /// The interrupt went away.
    Gone,
    /// The kernel lets nobody move this interrupt.
    Managed(String),
    /// No place has a vector left.
    NoVector(String),
    /// Not written for another reason, to be tried again.
    Failed(String),
}

pub(super) struct Writer<'a> {
    pub(super) system: System<'a>,
    pub(super) cpus: &'a Cpus,
    /// As it was saved.
    pub(super) record: Record,
    pub(super) report: &'a mut Report,
    pub(super) steering: bool,
    /// Interrupts that are still to be undone.
    pub(super) left: BTreeSet<u32>,
}

impl Writer<'_> {
    /// `default_smp_affinity`.
    pub(super) fn default(&mut self, found: &CpuSet, wanted: &CpuSet) {
        let written = if found == wanted {
            Ok(())
        } else {
            self.write(DEFAULT, &wanted.to_mask())
        };
        match written {
            Ok(()) if !self.steering => self.record.default = None,
            Ok(()) => {}
            Err((_, text)) => report_problem(self.report, "", text),
        }
    }

    /// Give an interrupt the wanted mask.
    pub(super) fn place(&mut self, task: &Task<'_>, memory: &Memory) -> Outcome {
        let (found, wanted) = (&task.interrupt.mask, &task.decision.wanted);
        if found == wanted {
            return Outcome::Set(wanted.clone());
        }
        if let Some(text) = memory.managed(&task.interrupt.identity) {
            return Outcome::Managed(text.into());
        }
        if memory.is_stand_in(task) {
            return Outcome::StandIn(found.clone());
        }
        let path = mask_path(task.irq());
        // Without CAP_DAC_OVERRIDE such a file cannot even be opened.
        if self.system.files.mode(&path).is_ok_and(|mode| mode & 0o222 == 0) {
            return Outcome::Managed(format!("{path} is read-only: the kernel manages this interrupt"));
        }
        match self.write(&path, &wanted.to_string()) {
            Ok(()) => Outcome::Set(wanted.clone()),
            Err((Some(Errno::NOENT), _)) => Outcome::Gone,
            // EIO: older kernels. An interrupt whose controller has no masks answers the same.
            Err((Some(Errno::PERM | Errno::IO), text)) => Outcome::Managed(text),
            Err((Some(Errno::NOSPC), text)) => self.elsewhere(task, text),
            Err((_, text)) => Outcome::Failed(text),
        }
    }

    /// All places that would do instead are kept before the first is tried.
    fn elsewhere(&mut self, task: &Task<'_>, text: String) -> Outcome {
        let identity = &task.interrupt.identity;
        if task.interrupt.mask.is_disjoint(&task.disturbed) {
            return Outcome::NoVector(text);
        }
        let masks = self
            .cpus
            .alternatives(identity.irq, &task.decision.wanted, task.device());
        let entry = self.record.interrupts.iter_mut().find(|(one, _)| one == identity);
        let Some((_, kept)) = entry else {
            return Outcome::NoVector(text);
        };
        kept.ours.extend(masks.iter().cloned());
        if let Err(error) = self.record.save(self.system.store) {
            report_problem(self.report, "", error);
            return Outcome::NoVector(text);
        }
        let path = mask_path(identity.irq);
        for mask in masks {
            match self.write(&path, &mask.to_string()) {
                Ok(()) => return Outcome::StandIn(mask),
                Err((Some(Errno::NOENT), _)) => return Outcome::Gone,
                Err((Some(Errno::NOSPC), _)) => {}
                Err((_, text)) => return Outcome::Failed(text),
            }
        }
        Outcome::NoVector(text)
    }

    /// What was undone, or is not ours any more, need not be kept. What could not be undone is, for the next order.
    pub(super) fn undone(&mut self, task: &Task<'_>, outcome: &Outcome) {
        match outcome {
            Outcome::NoVector(text) | Outcome::Failed(text) => {
                self.left.insert(task.irq());
                report_problem(self.report, "", text.clone());
            }
            // What cannot be moved never was.
            Outcome::Set(_) | Outcome::StandIn(_) | Outcome::Gone | Outcome::Managed(_) => {}
        }
    }

    /// Save what is left to be undone.
    pub(super) fn forget(mut self, unread: &BTreeSet<u32>) -> Result<(), String> {
        let left = |irq: &u32| self.left.contains(irq) || unread.contains(irq);
        self.record
            .interrupts
            .retain(|(one, kept)| !kept.ours.is_empty() && left(&one.irq));
        self.record.save(self.system.store)
    }

    /// With what the kernel answered, and the same in words.
    fn write(&mut self, path: &str, value: &str) -> Result<(), (Option<Errno>, String)> {
        let mut left = MAX_WRITE_ATTEMPTS;
        loop {
            let Err(error) = self.system.files.write(path, value) else {
                self.report.writes += 1;
                return Ok(());
            };
            left -= 1;
            let errno = Errno::from_io_error(&error);
            if errno != Some(Errno::BUSY) || left == 0 {
                return Err((errno, format!("write {value:?} to {path}: {}", cause(&error))));
            }
        }
    }
}
