//! Writes an interrupt's mask and handles the errors that the kernel may answer.

use std::collections::BTreeSet;

use rustix::io::Errno;
use stelia_api::quiet::Report;
use stelia_cpus::CpuSet;
use stelia_cpus::text::excerpt::cause;

use super::read::{DEFAULT, mask_path};
use super::saved_masks::Record;
use super::wanted_mask::Cpus;
use super::{RoundHistory, Task};
use crate::failure::problem;
use crate::files::System;

/// The kernel answers EBUSY while an interrupt is on its way to another CPU, which takes as long as one interrupt does.
const MAX_WRITE_ATTEMPTS: u32 = 3;

/// The result of setting a mask.
pub(super) enum WriteOutcome {
    /// It is as wanted, whether or not it had to be written.
    Set(CpuSet),
    /// No vector is left on the wanted CPUs, so it is another mask that disturbs no VM.
    Alternative(CpuSet),
    /// The interrupt went away.
    Gone,
    /// The kernel lets nobody move this interrupt.
    Managed(String),
    /// No vector is left on the wanted CPUs, nor on those of any alternative.
    NoVector(String),
    /// Not written for another reason, to be tried again.
    Failed(String),
}

pub(super) struct Writer<'a> {
    pub(super) system: System<'a>,
    pub(super) cpus: &'a Cpus,
    /// The base record as it was saved.
    pub(super) record: Record,
    pub(super) report: &'a mut Report,
    pub(super) steering: bool,
    /// Interrupts whose masks could not be restored.
    pub(super) not_restored: BTreeSet<u32>,
}

impl Writer<'_> {
    /// Set `default_smp_affinity`.
    pub(super) fn set_default(&mut self, found: &CpuSet, wanted: &CpuSet) {
        let written = if found == wanted {
            Ok(())
        } else {
            self.write(DEFAULT, &wanted.to_mask())
        };
        match written {
            Ok(()) if !self.steering => self.record.default = None,
            Ok(()) => {}
            Err((_, text)) => problem(self.report, "", text),
        }
    }

    /// Give an interrupt the wanted mask.
    pub(super) fn set_mask(&mut self, task: &Task<'_>, memory: &RoundHistory) -> WriteOutcome {
        let (found, wanted) = (&task.interrupt.mask, &task.decision.wanted);
        if found == wanted {
            return WriteOutcome::Set(wanted.clone());
        }
        if let Some(text) = memory.refusal(&task.interrupt.identity) {
            return WriteOutcome::Managed(text.into());
        }
        if memory.keeps_alternative(task) {
            return WriteOutcome::Alternative(found.clone());
        }
        let path = mask_path(task.irq());
        // Without CAP_DAC_OVERRIDE such a file cannot even be opened.
        if self.system.files.mode(&path).is_ok_and(|mode| mode & 0o222 == 0) {
            return WriteOutcome::Managed(format!("{path} is read-only: the kernel manages this interrupt"));
        }
        match self.write(&path, &wanted.to_string()) {
            Ok(()) => WriteOutcome::Set(wanted.clone()),
            Err((Some(Errno::NOENT), _)) => WriteOutcome::Gone,
            // EIO: older kernels. An interrupt whose controller has no masks answers the same.
            Err((Some(Errno::PERM | Errno::IO), text)) => WriteOutcome::Managed(text),
            Err((Some(Errno::NOSPC), text)) => self.set_alternative(task, text),
            Err((_, text)) => WriteOutcome::Failed(text),
        }
    }

    /// Set the first mask of the alternatives that has a vector left. All of them are in the saved record before the first is
    /// written.
    fn set_alternative(&mut self, task: &Task<'_>, text: String) -> WriteOutcome {
        let identity = &task.interrupt.identity;
        if task.interrupt.mask.is_disjoint(&task.disturbed) {
            return WriteOutcome::NoVector(text);
        }
        let masks = self
            .cpus
            .alternatives(identity.irq, &task.decision.wanted, task.device());
        let entry = self.record.interrupts.iter_mut().find(|(one, _)| one == identity);
        let Some((_, saved)) = entry else {
            return WriteOutcome::NoVector(text);
        };
        saved.ours.extend(masks.iter().cloned());
        if let Err(error) = self.record.save(self.system.store) {
            problem(self.report, "", error);
            return WriteOutcome::NoVector(text);
        }
        let path = mask_path(identity.irq);
        for mask in masks {
            match self.write(&path, &mask.to_string()) {
                Ok(()) => return WriteOutcome::Alternative(mask),
                Err((Some(Errno::NOENT), _)) => return WriteOutcome::Gone,
                Err((Some(Errno::NOSPC), _)) => {}
                Err((_, text)) => return WriteOutcome::Failed(text),
            }
        }
        WriteOutcome::NoVector(text)
    }

    /// Report a mask that could not be restored, and leave it in the record for the next order.
    pub(super) fn note_restored(&mut self, task: &Task<'_>, outcome: &WriteOutcome) {
        match outcome {
            WriteOutcome::NoVector(text) | WriteOutcome::Failed(text) => {
                self.not_restored.insert(task.irq());
                problem(self.report, "", text.clone());
            }
            // A managed interrupt was never moved.
            WriteOutcome::Set(_) | WriteOutcome::Alternative(_) | WriteOutcome::Gone | WriteOutcome::Managed(_) => {}
        }
    }

    /// Save the record with only those masks that are still to be restored.
    pub(super) fn save_rest(mut self, unread: &BTreeSet<u32>) -> Result<(), String> {
        let remains = |irq: &u32| self.not_restored.contains(irq) || unread.contains(irq);
        self.record
            .interrupts
            .retain(|(identity, saved)| !saved.ours.is_empty() && remains(&identity.irq));
        self.record.save(self.system.store)
    }

    /// The error is the kernel's number and its text.
    fn write(&mut self, path: &str, value: &str) -> Result<(), (Option<Errno>, String)> {
        let mut attempts = MAX_WRITE_ATTEMPTS;
        loop {
            let Err(error) = self.system.files.write(path, value) else {
                self.report.writes += 1;
                return Ok(());
            };
            attempts -= 1;
            let errno = Errno::from_io_error(&error);
            if errno != Some(Errno::BUSY) || attempts == 0 {
                return Err((errno, format!("write {value:?} to {path}: {}", cause(&error))));
            }
        }
    }
}
