//! How long a sample of a host with 512 CPUs takes, each the seat of a vCPU thread: `cargo bench -p stelia-ledger`.
//!
//! The files lie below a folder, so the kernel's formatting of them is not in it; that is printed beside it for the files of the host
//! that this runs on. It fails where reading or parsing takes longer than it may.

#[path = "../cpu_time/mod.rs"]
mod cpu_time;
mod fixture;
#[path = "../../../../benches/timing/mod.rs"]
mod timing;

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use criterion::Criterion;
use stelia_cpus::CpuSet;
use stelia_kernel::counters::interrupts;
use stelia_ledger::sample::Reader;

use cpu_time::{is_within, shortest};
use timing::median;

/// Of a sample of 512 CPUs may take so much CPU time: making numbers of the largest file, and all of it. What is left of 30 ms is for the
/// kernel to format its files.
const PARSING: Duration = Duration::from_millis(5);
const LOOK: Duration = Duration::from_millis(20);

fn main() -> anyhow::Result<()> {
    let mut criterion = Criterion::default().configure_from_args();
    let text = fixture::interrupts();
    let wanted = CpuSet::below(fixture::CPUS);
    let one = CpuSet::below(1);
    ensure!(interrupts::parse(text.as_bytes(), &wanted)?.online == wanted);
    let folder = tempfile::tempdir()?;
    let seats = fixture::write(folder.path())?;
    let mut reader = Reader::new(folder.path());
    let sample = reader.sample(&seats)?;
    ensure!(sample.seats.len() == seats.len(), "{} seats", sample.seats.len());
    ensure!(
        sample
            .seats
            .values()
            .all(|counters| counters.bound_read && counters.bound.len() == 6)
    );

    let mut report = String::new();
    let mut timed = |name: &str, run: &mut dyn FnMut()| {
        criterion.bench_function(&format!("look/{name}"), |bencher| bencher.iter(&mut *run));
        report += &format!("{name:<52} {:>10.2?}\n", median(run));
    };
    let size = text.len() / 1000;
    timed(&format!("parse {size} kB of interrupts, 512 CPUs wanted"), &mut || {
        black_box(interrupts::parse(black_box(text.as_bytes()), &wanted).is_ok());
    });
    timed(&format!("parse {size} kB of interrupts, 1 CPU wanted"), &mut || {
        black_box(interrupts::parse(black_box(text.as_bytes()), &one).is_ok());
    });
    timed("512 seats, nothing else ran", &mut || {
        black_box(reader.sample(&seats).is_ok());
    });
    let mut round = 0;
    timed(
        "512 seats, other tasks ran on each (with the bench's write)",
        &mut || {
            round += 1;
            black_box((
                fixture::disturb(folder.path(), round).is_ok(),
                reader.sample(&seats).is_ok(),
            ));
        },
    );
    timed("the bench's write alone", &mut || {
        round += 1;
        black_box(fixture::disturb(folder.path(), round).is_ok());
    });
    timed("512 seats for the first time", &mut || {
        black_box(Reader::new(Path::new(folder.path())).sample(&seats).is_ok());
    });
    for path in ["/proc/interrupts", "/proc/schedstat"] {
        // A kernel without CONFIG_SCHEDSTATS has no schedstat.
        let Ok(text) = fs::read(path) else { continue };
        timed(&format!("{path} of this host, {} bytes", text.len()), &mut || {
            black_box(fs::read(path).is_ok());
        });
    }
    criterion.final_summary();
    print!("\n{report}");
    let parsing = shortest(|| {
        black_box(interrupts::parse(black_box(text.as_bytes()), &wanted).is_ok());
    });
    let whole = shortest(|| {
        black_box(reader.sample(&seats).is_ok());
    });
    let disturbed = shortest(|| {
        round += 1;
        let wrote = fixture::disturb(folder.path(), round).is_ok();
        black_box((wrote, reader.sample(&seats).is_ok()));
    });
    println!("CPU time: parsing {parsing:.2?}, may take {PARSING:?}; a look {whole:.2?}, may take {LOOK:?}");
    println!("CPU time of a look where other tasks ran on each of the 512, with the bench's write: {disturbed:.2?}");
    ensure!(is_within(parsing, PARSING) && is_within(whole, LOOK), "too long");
    Ok(())
}
