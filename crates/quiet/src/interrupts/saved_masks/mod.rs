//! The base record: the masks that interrupts had before the first change, and those written since. It is saved in the
//! [`Store`], so that changes can be undone after a crash of `steliad-quiet`.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use stelia_cpus::CpuSet;

use super::read::Identity;
use crate::files::Store;
use crate::store_json;

/// The record's name in the [`Store`].
pub const NAME: &str = "interrupts.json";

/// The mask that an interrupt had before steliad changed it, and the masks that steliad wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedMask {
    /// The mask to restore.
    pub base: CpuSet,
    /// Masks that steliad wrote or, since they are saved before the write, was about to write when it crashed. Empty: the
    /// mask was never changed.
    pub ours: Vec<CpuSet>,
}

/// The masks of all interrupts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// `default_smp_affinity`; `None`: it was never changed.
    pub default: Option<SavedMask>,
    /// In the order of their first appearance, with those that were never changed: an interrupt that is missing is new, and
    /// may have got its mask from a changed default.
    pub interrupts: Vec<(Identity, SavedMask)>,
}

impl Record {
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Read the record; an empty one if none was saved.
    ///
    /// # Errors
    /// With the name and the cause. Nothing may be written then: masks that steliad wrote could not be told from a base.
    pub fn load(store: &dyn Store) -> Result<Self, String> {
        let file: File = store_json::load(store, NAME).map_err(|failure| failure.to_string())?;
        file.record()
            .ok_or_else(|| format!("read the record {NAME}: it names a mask it does not have"))
    }

    /// Replace the saved record.
    pub fn save(&self, store: &dyn Store) -> Result<(), String> {
        store_json::save(store, NAME, &File::of(self)).map_err(|failure| failure.to_string())
    }
}

/// The record in JSON. Many interrupts have the same mask, and a mask is long on a node with many VMs: each is written once.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    masks: Vec<CpuSet>,
    default: Option<MaskIndexes>,
    interrupts: Vec<(Identity, MaskIndexes)>,
}

/// A [`SavedMask`] as indexes of `masks`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MaskIndexes {
    base: usize,
    ours: Vec<usize>,
}

impl File {
    fn of(record: &Record) -> Self {
        let mut masks = Masks::default();
        let default = record.default.as_ref().map(|saved| masks.indexes(saved));
        let interrupts = record.interrupts.iter();
        let interrupts = interrupts
            .map(|(identity, saved)| (identity.clone(), masks.indexes(saved)))
            .collect();
        Self {
            masks: masks.list,
            default,
            interrupts,
        }
    }

    fn record(self) -> Option<Record> {
        let mask = |index: usize| self.masks.get(index).cloned();
        let saved = |indexes: MaskIndexes| {
            let ours = indexes.ours.into_iter().map(mask).collect::<Option<_>>()?;
            Some(SavedMask {
                base: mask(indexes.base)?,
                ours,
            })
        };
        let default = match self.default {
            Some(indexes) => Some(saved(indexes)?),
            None => None,
        };
        let interrupts = self.interrupts.into_iter();
        let interrupts = interrupts.map(|(identity, indexes)| Some((identity, saved(indexes)?)));
        Some(Record {
            default,
            interrupts: interrupts.collect::<Option<_>>()?,
        })
    }
}

#[derive(Default)]
struct Masks {
    list: Vec<CpuSet>,
    indexes: std::collections::HashMap<CpuSet, usize>,
}

impl Masks {
    fn indexes(&mut self, saved: &SavedMask) -> MaskIndexes {
        MaskIndexes {
            base: self.index(&saved.base),
            ours: saved.ours.iter().map(|mask| self.index(mask)).collect(),
        }
    }

    fn index(&mut self, mask: &CpuSet) -> usize {
        let next = self.list.len();
        *self.indexes.entry(mask.clone()).or_insert_with(|| {
            self.list.push(mask.clone());
            next
        })
    }
}
