//! Full and broken disks, and reserved space.

use super::*;

/// A disk with limited space, shared by all files of the directory.
#[derive(Clone)]
struct LimitedDisk {
    directory: PathBuf,
    room: Arc<Mutex<u64>>,
    /// The number of calls of `fdatasync` and of `ftruncate` that fail next.
    broken: Arc<Mutex<(u32, u32)>>,
}

impl LimitedDisk {
    fn new(directory: &Path, room: u64) -> Self {
        Self {
            directory: directory.to_owned(),
            room: Arc::new(Mutex::new(room)),
            broken: Arc::default(),
        }
    }

    fn fails(of: &mut u32) -> io::Result<()> {
        if *of == 0 {
            return Ok(());
        }
        *of -= 1;
        Err(rustix::io::Errno::IO.into())
    }
}

impl Disk for LimitedDisk {
    fn create(&mut self, folder: &Folder, name: &str) -> Result<File, RingError> {
        if bytes(&self.directory) >= *self.room.lock().unwrap() {
            return Err(RingError::system("open", &self.directory.join(name))(
                rustix::io::Errno::NOSPC,
            ));
        }
        folder.create(name)
    }

    fn write(&mut self, file: &File, bytes_: &[u8], at: u64) -> io::Result<()> {
        let room = *self.room.lock().unwrap();
        let left = room.saturating_sub(bytes(&self.directory)) as usize;
        file.write_all_at(&bytes_[..left.min(bytes_.len())], at)?;
        if left < bytes_.len() {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
    }

    fn sync(&mut self, _: &File) -> io::Result<()> {
        Self::fails(&mut self.broken.lock().unwrap().0)
    }

    fn cut(&mut self, file: &File, length: u64) -> io::Result<()> {
        Self::fails(&mut self.broken.lock().unwrap().1)?;
        file.set_len(length)
    }
}

#[test]
fn a_full_disk_stops_the_ring_and_erases_nothing_of_it() {
    let directory = folder();
    let disk = LimitedDisk::new(directory.path(), 5000);
    let limits = limits(1 << 20, 600);
    let (mut ring, _) = Ring::open_on(Box::new(disk.clone()), directory.path(), limits).unwrap();
    let mut kept = 0;
    for at in 1..100 {
        match ring.append(&mut entry(at, 100)) {
            Ok(appended) => {
                assert_eq!(appended.removed, 0);
                kept += 1;
            }
            Err(error) => assert!(error.to_string().contains("No space left"), "{error}"),
        }
        assert!(checked(directory.path()).is_good());
    }
    assert!((10..99).contains(&kept), "{kept}");
    // Whoever fills the disk, and takes each block that becomes free, gets none of the ring's.
    *disk.room.lock().unwrap() = 0;
    let (before, files) = (ring.head(), segments(directory.path()).len());
    for at in 0..30 {
        ring.append(&mut entry(at, 100)).unwrap_err();
    }
    assert_eq!(ring.head(), before);
    assert!(segments(directory.path()).len() >= files);
    let (all, _) = read(directory.path());
    assert_eq!(seqs(&all), (1..=kept).collect::<Vec<u64>>());
    // Also to a daemon that starts meanwhile.
    drop(ring);
    let (mut ring, _) = Ring::open_on(Box::new(disk.clone()), directory.path(), limits).unwrap();
    ring.append(&mut entry(1, 100)).unwrap_err();
    assert_eq!(ring.head(), before);
    // Once there is room it goes on where it was.
    *disk.room.lock().unwrap() = 1 << 20;
    assert_eq!(ring.append(&mut entry(1, 100)).unwrap().seq, kept + 1);
    assert!(checked(directory.path()).is_good());
    assert_eq!(read(directory.path()).0.len() as u64, kept + 1);
}

#[test]
fn nothing_is_removed_for_an_entry_that_cannot_be_written_although_the_ring_is_at_its_limit() {
    let directory = folder();
    let disk = LimitedDisk::new(directory.path(), 1 << 20);
    let limits = limits(3000, 600);
    let (mut ring, _) = Ring::open_on(Box::new(disk.clone()), directory.path(), limits).unwrap();
    while ring.append(&mut entry(1, 100)).unwrap().removed == 0 {}
    *disk.room.lock().unwrap() = 0;
    let first = read(directory.path()).0[0].seq;
    for _ in 0..30 {
        ring.append(&mut entry(1, 100)).unwrap_err();
    }
    assert_eq!(read(directory.path()).0[0].seq, first);
    // Who makes the ring smaller makes room, also on a full disk.
    ring.set_limits(super::limits(1500, 600));
    ring.append(&mut entry(1, 100)).unwrap_err();
    assert!(bytes(directory.path()) <= 1500);
    assert!(checked(directory.path()).is_good());
}

#[test]
fn the_room_of_a_segment_is_reserved_when_it_begins_and_given_back_when_it_is_full() {
    use std::os::unix::fs::MetadataExt;
    let directory = folder();
    let limits = limits(8 << 20, 1 << 20);
    let (mut ring, _) = open(directory.path(), limits);
    ring.append(&mut entry(1, 100)).unwrap();
    let blocks = |at: usize| fs::metadata(&segments(directory.path())[at]).unwrap().blocks() * 512;
    let length = bytes(directory.path());
    assert!(length < 1000, "{length}");
    if blocks(0) < 1 << 20 {
        // A file system that cannot, such as ZFS.
        return;
    }
    for at in 0..2 {
        ring.append(&mut entry(at, 600_000)).unwrap();
    }
    ring.append(&mut entry(9, 100)).unwrap();
    assert_eq!(segments(directory.path()).len(), 2);
    assert!(blocks(1) >= 1 << 20);
    drop(ring);
    let (mut ring, found) = open(directory.path(), limits);
    assert_eq!((found.cut, found.fault), (0, None));
    ring.append(&mut entry(10, 100)).unwrap();
    assert_eq!(seqs(&read(directory.path()).0), [1, 2, 3, 4, 5]);
}

#[test]
fn an_entry_that_is_not_safely_on_the_disk_is_taken_back_at_the_latest_before_the_next() {
    for (syncs, cuts) in [(1, 0), (1, 1), (2, 3)] {
        let directory = folder();
        let disk = LimitedDisk::new(directory.path(), 1 << 20);
        let (mut ring, _) = Ring::open_on(Box::new(disk.clone()), directory.path(), WIDE).unwrap();
        ring.append(&mut entry(1, 100)).unwrap();
        *disk.broken.lock().unwrap() = (syncs, cuts);
        let mut failed = 0;
        let seq = loop {
            match ring.append(&mut entry(2, 10)) {
                Ok(appended) => break appended.seq,
                Err(_) => failed += 1,
            }
        };
        assert_eq!(seq, 2);
        assert!(failed >= syncs, "{failed}");
        let (all, faults) = read(directory.path());
        assert_eq!((seqs(&all), faults), (vec![1, 2], 0));
    }
}
