//! Until the ledger's own is there.
#![allow(dead_code)]
use std::collections::{BTreeMap, BTreeSet};
use stelia_ledger::entry::{Entry, Event, Reading};
use stelia_ledger::look::{Look, Seat};

pub mod ring {
    #[derive(Debug, Clone)]
    pub struct Appended { pub seq: u64, pub hash: String, pub bytes: u64, pub removed: u64 }
}
#[derive(Default)]
pub struct Standing;
impl Standing { pub fn apply(&mut self, _: &Entry) {} }
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vm { pub name: String, pub state: String, pub seats: BTreeSet<Seat>, pub own_devices: Vec<String> }
#[derive(Clone, Copy)]
pub enum Why { Audit, Event, Query }
#[derive(Clone)]
pub struct Draft { pub entry: Entry, pub intrusions: Vec<Event> }
pub struct Keeper { notes: Vec<Event> }
impl Keeper {
    pub fn resume(_: Standing, _: &str, version: &str) -> Self { Self { notes: vec![Event::Started { version: version.into() }] } }
    pub fn wants(&self, vms: &BTreeMap<String, Vm>) -> BTreeSet<Seat> { vms.values().flat_map(|vm| vm.seats.iter().cloned()).collect() }
    pub fn looked(&mut self, look: &Look, _: &BTreeMap<String, Vm>, _: Why, _: bool) -> Option<Draft> {
        let readings = look.seats.iter().map(|_| Reading::default()).collect();
        Some(Draft { entry: Entry { at: look.at_us, up: look.up_us, events: self.notes.clone(), readings, ..Entry::default() }, intrusions: vec![] })
    }
    pub fn kept(&mut self, _: Draft) { self.notes.clear() }
    pub fn missed(&mut self, _: &str) {}
    pub fn note(&mut self, event: Event) { self.notes.push(event) }
    pub fn use_key(&mut self, _: &str) {}
    pub fn stopped(&mut self) -> Option<Draft> { None }
}
