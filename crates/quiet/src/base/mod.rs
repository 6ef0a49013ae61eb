//! The base record: where interrupts could fire before the first change, and what was written since. It lies in the
//! [`Store`], because what it tells of is undone also after a crash of `steliad-quiet`.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;
use stelia_text::excerpt::cause;

use crate::files::Store;
use crate::interrupts::Identity;

/// The name in the [`Store`].
pub const NAME: &str = "interrupts.json";

const VERSION: u32 = 1;

/// The mask that an interrupt had before steliad changed it, and the masks that steliad wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedMask {
    /// To be restored.
    pub base: CpuSet,
    /// What was written, or may have been: it is kept before the write, so after a crash either the one before or
    /// this one is there. Empty: the mask was never changed.
    pub ours: Vec<CpuSet>,
}

/// What is kept of all interrupts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The mask of `default_smp_affinity`; `None`: it was never changed.
    pub default: Option<SavedMask>,
    /// In the order of their first appearance. Those never changed are here too: what is not was born later, with a
    /// default that may be ours.
    pub interrupts: Vec<(Identity, SavedMask)>,
}

impl Record {
    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// What is kept.
    ///
    /// # Errors
    /// With the name and the cause. Nothing may be written then: what is there could not be told from a base.
    pub fn load(store: &dyn Store) -> Result<Self, String> {
        let text = store
            .load(NAME)
            .map_err(|error| format!("read {NAME}: {}", cause(&error)))?;
        let Some(text) = text else {
            return Ok(Self::default());
        };
        let file: File = serde_json::from_str(&text).map_err(|error| format!("read {NAME}: {}", cause(&error)))?;
        file.record()
            .ok_or_else(|| format!("read {NAME}: it is not of version {VERSION}, or names a mask it does not have"))
    }

    /// Replaces what is kept.
    ///
    /// # Errors
    /// With the name and the cause.
    pub fn save(&self, store: &dyn Store) -> Result<(), String> {
        let text = serde_json::to_string(&File::of(self)).map_err(|error| format!("save {NAME}: {}", cause(&error)))?;
        store
            .save(NAME, &text)
            .map_err(|error| format!("save {NAME}: {}", cause(&error)))
    }
}

/// Masks are many times the same, and long on a node with many VMs: each is written once.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    masks: Vec<CpuSet>,
    default: Option<MaskIndexes>,
    interrupts: Vec<(Identity, MaskIndexes)>,
}

/// [`SavedMask`], by places in `masks`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MaskIndexes {
    base: usize,
    ours: Vec<usize>,
}

impl File {
    fn of(record: &Record) -> Self {
        let mut masks = Masks::default();
        let default = record.default.as_ref().map(|kept| masks.places(kept));
        let interrupts = record.interrupts.iter();
        let interrupts = interrupts
            .map(|(identity, kept)| (identity.clone(), masks.places(kept)))
            .collect();
        Self {
            version: VERSION,
            masks: masks.list,
            default,
            interrupts,
        }
    }

    fn record(self) -> Option<Record> {
        let mask = |place: usize| self.masks.get(place).cloned();
        let kept = |places: MaskIndexes| {
            let ours = places.ours.into_iter().map(mask).collect::<Option<_>>()?;
            Some(SavedMask {
                base: mask(places.base)?,
                ours,
            })
        };
        let default = match self.default {
            Some(places) => Some(kept(places)?),
            None => None,
        };
        let interrupts = self.interrupts.into_iter();
        let interrupts = interrupts.map(|(identity, places)| Some((identity, kept(places)?)));
        let record = Record {
            default,
            interrupts: interrupts.collect::<Option<_>>()?,
        };
        (self.version == VERSION).then_some(record)
    }
}

#[derive(Default)]
struct Masks {
    list: Vec<CpuSet>,
    places: std::collections::HashMap<CpuSet, usize>,
}

impl Masks {
    fn places(&mut self, kept: &SavedMask) -> MaskIndexes {
        MaskIndexes {
            base: self.place(&kept.base),
            ours: kept.ours.iter().map(|mask| self.place(mask)).collect(),
        }
    }

    fn place(&mut self, mask: &CpuSet) -> usize {
        let next = self.list.len();
        *self.places.entry(mask.clone()).or_insert_with(|| {
            self.list.push(mask.clone());
            next
        })
    }
}
