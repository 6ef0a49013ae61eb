//! The kernel behind [`Files`], and a directory behind [`Store`].

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use stelia_cpus::CpuSet;

use crate::files::{Files, Store};

/// The kernel's files.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The directory that absolute paths start from: `/`, or a test's directory.
    root: PathBuf,
}

impl Kernel {
    /// Does no I/O.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// Initial size of the buffer, in bytes. `/proc/interrupts` of a large node takes megabytes; most other files a line.
const INITIAL_BUFFER_BYTES: usize = 4096;

impl Files for Kernel {
    fn read(&self, path: &str) -> io::Result<String> {
        let mut bytes = Vec::with_capacity(INITIAL_BUFFER_BYTES);
        File::open(self.at(path))?.read_to_end(&mut bytes)?;
        // Drivers may name their interrupts with any bytes: a name that is not UTF-8 must not make the others unreadable.
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.at(path))?;
        let text = format!("{value}\n");
        // Not write_all: a second write would be another value.
        match file.write(text.as_bytes())? {
            written if written == text.len() => Ok(()),
            written => Err(io::Error::new(
                io::ErrorKind::WriteZero,
                format!("{written} of {} bytes were taken", text.len()),
            )),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(path))? {
            names.extend(entry?.file_name().into_string().ok());
        }
        names.sort();
        Ok(names)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let target = fs::read_link(self.at(path))?;
        let name = target.file_name().and_then(|name| name.to_str());
        name.map(str::to_owned)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the link has no last part"))
    }

    fn mode(&self, path: &str) -> io::Result<u32> {
        Ok(fs::metadata(self.at(path))?.permissions().mode() & 0o7777)
    }

    fn set_mode(&self, path: &str, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode))
    }

    fn make_directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.at(path))
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.at(path))
    }

    fn affinity(&self, thread: i32) -> io::Result<CpuSet> {
        stelia_kernel::affinity::get(thread)
    }

    fn set_affinity(&self, thread: i32, cpus: &CpuSet) -> io::Result<()> {
        stelia_kernel::affinity::set(thread, cpus)
    }
}

/// A directory with a file for each value.
#[derive(Debug, Clone)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Make the directory if it is not there. Everyone may read the records.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        // The daemon opens it for each order.
        if !path.is_dir() {
            DirBuilder::new().recursive(true).mode(0o755).create(&path)?;
        }
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            let text = format!("{name:?} is not a name");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(self.path.join(name))
    }
}

impl Store for Directory {
    fn load(&self, name: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.file(name)?) {
            Ok(value) => Ok(Some(value)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    fn save(&self, name: &str, value: &str) -> io::Result<()> {
        let path = self.file(name)?;
        let new = self.path.join(format!(".{name}.new"));
        let write = || {
            let mut options = OpenOptions::new();
            // No fsync: the records need not outlive the boot.
            let options = options.write(true).create(true).truncate(true).mode(0o644);
            options.open(&new)?.write_all(value.as_bytes())?;
            fs::rename(&new, &path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        Kernel::below("/")
    }

    fn text(path: &Path) -> &str {
        path.to_str().unwrap()
    }

    #[test]
    fn a_value_is_written_whole_with_a_newline_and_an_error_keeps_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("smp_affinity_list");
        fs::write(&path, "0-7 longer").unwrap();
        let missing = kernel().write(text(&folder.path().join("none")), "1").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(2));
        // Files of the kernel's are not truncated, and this is not done here either.
        kernel().write(text(&path), "0-3").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "0-3\nlonger");
        let full = kernel().write("/dev/full", "1").unwrap_err();
        assert_eq!(full.raw_os_error(), Some(28));
    }

    #[test]
    fn a_file_that_is_not_utf_8_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("interrupts");
        fs::write(&path, b"24: 1 a\xffb\n").unwrap();
        assert_eq!(kernel().read(text(&path)).unwrap(), "24: 1 a\u{fffd}b\n");
        let long = "x".repeat(3 * INITIAL_BUFFER_BYTES + 1);
        fs::write(&path, &long).unwrap();
        assert_eq!(kernel().read(text(&path)).unwrap(), long);
    }

    #[test]
    fn names_links_and_modes_are_the_systems() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        kernel().make_directory(text(&at("b"))).unwrap();
        fs::write(at("a"), "").unwrap();
        fs::set_permissions(at("a"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("../devices/0000:03:00.0", at("device")).unwrap();
        assert_eq!(kernel().list(text(folder.path())).unwrap(), ["a", "b", "device"]);
        assert_eq!(kernel().link(text(&at("device"))).unwrap(), "0000:03:00.0");
        assert_eq!(kernel().mode(text(&at("a"))).unwrap(), 0o640);
        kernel().remove_directory(text(&at("b"))).unwrap();
        assert_eq!(
            kernel().list(text(&at("b"))).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn what_was_saved_is_loaded_and_a_failed_save_leaves_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Directory::open(folder.path().join("stelia/quiet")).unwrap();
        assert_eq!(store.load("irqs.json").unwrap(), None);
        store.save("irqs.json", "{}").unwrap();
        store.save("irqs.json", "{\"24\":\"0-7\"}").unwrap();
        assert_eq!(store.load("irqs.json").unwrap().as_deref(), Some("{\"24\":\"0-7\"}"));
        assert_eq!(kernel().mode(text(&store.path().join("irqs.json"))).unwrap(), 0o644);
        // Nothing but the value is there, and where the new one cannot be made the old one stays.
        assert_eq!(kernel().list(text(store.path())).unwrap(), ["irqs.json"]);
        fs::create_dir(store.path().join(".irqs.json.new")).unwrap();
        store.save("irqs.json", "{}").unwrap_err();
        assert_eq!(store.load("irqs.json").unwrap().as_deref(), Some("{\"24\":\"0-7\"}"));
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Directory::open(folder.path()).unwrap();
        for name in ["", "../a", "a/b", ".a"] {
            assert_eq!(store.save(name, "x").unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(store.load(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
