//! The bytes of an object in each profile, at 256 CPUs and 32 VMs:
//! `cargo bench -p stelia-koordinator --features testing --bench bytes`.

use stelia_koordinator::report::compact::Compact;
use stelia_koordinator::report::fingerprint::Method;
use stelia_koordinator::report::profile::{Profile, object};
use stelia_koordinator::report::testing::large;

fn main() -> serde_json::Result<()> {
    let facts = large();
    let (cpus, vms) = (facts.topology.cpus.len(), facts.allocations.len());
    println!("bytes at {cpus} CPUs and {vms} VMs, JSON in one line:");
    for profile in Profile::ALL {
        for version in profile.versions() {
            let text = serde_json::to_string(&object(&facts, profile, *version, Method::default()))?;
            println!("{:<12} {} {:>6}", profile.name(), version.name(), text.len());
        }
    }
    println!("{:<21} {:>6}", "the attribute alone", Compact::of(&facts).text().len());
    Ok(())
}
