//! Which pod has which CPU: for each CPU that is some pod's, ascending, the place of its pod in the list of UIDs.
//!
//! A place is one character, or two where there are more pods than one can tell apart: digits of base64, the highest number for a CPU
//! of nobody in the list. 224 CPUs of 32 VMs are 224 bytes, however scattered they are.

use std::collections::{BTreeMap, BTreeSet};

use stelia_cpus::CpuSet;
use stelia_kubelet::PodUid;

use super::{CompactError, wrong};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// How many characters a place of so many pods has.
fn width(pods: usize) -> u32 {
    if pods < DIGITS.len() { 1 } else { 2 }
}

/// The place that stands for nobody.
fn nobody(width: u32) -> usize {
    DIGITS.len().pow(width) - 1
}

/// `pods` in the order in which their UIDs are written; `taken` are the CPUs that are not free. More pods than places are written as if
/// nobody were known.
pub(super) fn write<'a>(
    pods: impl ExactSizeIterator<Item = &'a PodUid>,
    owners: &BTreeMap<PodUid, CpuSet>,
    taken: &CpuSet,
) -> String {
    let width = width(pods.len());
    let nobody = nobody(width);
    let mut places: BTreeMap<u32, usize> = taken.iter().map(|cpu| (cpu, nobody)).collect();
    for (place, pod) in pods.enumerate().take(nobody) {
        for cpu in owners.get(pod).into_iter().flat_map(CpuSet::iter) {
            places.entry(cpu).and_modify(|at| *at = place);
        }
    }
    if places.values().all(|place| *place == nobody) {
        return String::new();
    }
    let digit = |place: usize| char::from(DIGITS[place % DIGITS.len()]);
    let text = |place: usize| match width {
        1 => digit(place).to_string(),
        _ => [digit(place / DIGITS.len()), digit(place)].iter().collect(),
    };
    places.into_values().map(text).collect()
}

pub(super) fn read(text: &str, pods: &[PodUid], taken: &CpuSet) -> Result<BTreeMap<PodUid, CpuSet>, CompactError> {
    let mut owners: BTreeMap<PodUid, CpuSet> = BTreeMap::new();
    if text.is_empty() {
        return Ok(owners);
    }
    let width = width(pods.len());
    let chunks = text.as_bytes().chunks_exact(width as usize);
    if !chunks.remainder().is_empty() || chunks.len() != taken.len() {
        return Err(wrong(
            "owners",
            text,
            "not as many places as there are CPUs that are not free",
        ));
    }
    for (cpu, digits) in taken.iter().zip(chunks) {
        let place = digits.iter().try_fold(0, |place, digit| {
            let value = DIGITS.iter().position(|known| known == digit)?;
            Some(place * DIGITS.len() + value)
        });
        match place.map(|place| (place, pods.get(place))) {
            Some((_, Some(pod))) => owners.entry(pod.clone()).or_default().insert(cpu),
            Some((place, None)) if place == nobody(width) => {}
            _ => return Err(wrong("owners", text, "not places in the list of pods")),
        }
    }
    Ok(owners)
}

/// The pods that have CPUs among these.
pub(super) fn known(pods: &BTreeSet<PodUid>, owners: &BTreeMap<PodUid, CpuSet>) -> BTreeSet<PodUid> {
    pods.iter().filter(|pod| owners.contains_key(*pod)).cloned().collect()
}

/// The places of some pods in the list of all, which is written in the set's order.
pub(super) fn places(all: &BTreeSet<PodUid>, some: &BTreeSet<PodUid>) -> Vec<usize> {
    let places = all.iter().enumerate().filter(|(_, pod)| some.contains(*pod));
    places.map(|(place, _)| place).collect()
}

/// The pods at these places.
pub(super) fn at(places: &[usize], pods: &[PodUid]) -> Result<BTreeSet<PodUid>, CompactError> {
    let at = |place: &usize| {
        let pod = pods.get(*place).cloned();
        pod.ok_or_else(|| wrong("containers", &place.to_string(), "not a place in the list of pods"))
    };
    places.iter().map(at).collect()
}
