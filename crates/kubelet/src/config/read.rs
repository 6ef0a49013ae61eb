//! The running kubelet's configuration, read from the system.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::{ConfigError, DropIn, Flags, KubeletConfig};
use crate::home::{self, Search};

/// A larger file is not read, in bytes: a real one has some kilobytes.
const MAX_BYTES: u64 = 1 << 20;

/// Finds the running kubelet, where `search` says, and reads its configuration. `proc` is `/proc`; `root` is `/`, or a directory below which
/// the paths of kubelet's command line are looked up.
///
/// Files that changed since kubelet started are read as they are now: kubelet applies them at its next start.
///
/// # Errors
/// No kubelet runs or more than one does, or it would not start with its configuration.
pub fn read(proc: &Path, root: &Path, search: Search) -> Result<KubeletConfig, ConfigError> {
    let process = home::find(proc, root, search)?;
    let mut flags = Flags::parse(&home::argv(&process, proc, root)?)?;
    flags.root_dir = flags.root_dir.or(process.root);
    let hidden = process.host == home::Host::K3s;
    let process = proc.join(process.pid.to_string());
    // A relative path is relative to the directory kubelet was started in.
    let place = |path: &Path| -> Result<PathBuf, ConfigError> {
        let link = process.join("cwd");
        let absolute = if path.is_absolute() {
            path.to_owned()
        } else {
            fs::read_link(&link).map_err(ConfigError::of_process(&link))?.join(path)
        };
        Ok(root.join(absolute.strip_prefix("/").unwrap_or(&absolute)))
    };
    let file = flags.config.as_deref().map(&place).transpose()?;
    let file = file
        .map(|path| super::File::parse(&text(&path)?, &shown(&path, root)))
        .transpose()?;
    let mut paths = Vec::new();
    if let Some(path) = &flags.config_dir {
        drop_ins(&place(path)?, &mut paths)?;
    }
    let mut patches = Vec::new();
    for path in paths {
        patches.push(DropIn::parse(&text(&path)?, &shown(&path, root))?);
    }
    let config = KubeletConfig::new(file, patches, flags)?;
    Ok(KubeletConfig { hidden, ..config })
}

/// A path as the node's own programs have it.
fn shown(path: &Path, root: &Path) -> String {
    let below = path.strip_prefix(root);
    below
        .map_or_else(|_| path.to_owned(), |below| Path::new("/").join(below))
        .display()
        .to_string()
}

/// The configuration's path on nodes that kubeadm set up.
const KUBEADM: &str = "/var/lib/kubelet/config.yaml";

/// The configuration of a kubelet that kubeadm set up and that does not run, from its file alone, and that file's path: its flags are not known.
/// One that cannot start runs only for moments. `None`: there is no such file.
pub fn kubeadm(root: &Path) -> Option<(&'static str, Result<KubeletConfig, ConfigError>)> {
    let read = match text(&root.join(KUBEADM.trim_start_matches('/'))) {
        Err(ConfigError::Read { cause, .. }) if cause.kind() == ErrorKind::NotFound => return None,
        read => read,
    };
    let parsed = read.and_then(|text| super::File::parse(&text, KUBEADM));
    let config = parsed.and_then(|file| KubeletConfig::new(Some(file), Vec::new(), Flags::default()));
    Some((KUBEADM, config))
}

/// Every file `*.conf` in the directory and those below, in the order in which kubelet walks: names sorted bytewise, a
/// directory at the place of its name.
fn drop_ins(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ConfigError> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(ConfigError::read(folder))? {
        let entry = entry.map_err(ConfigError::read(folder))?;
        // A link to a directory is not followed: this is the type of the link itself.
        let kind = entry.file_type().map_err(ConfigError::read(folder))?;
        entries.push((entry.file_name(), kind.is_dir()));
    }
    entries.sort();
    for (name, is_folder) in entries {
        let path = folder.join(&name);
        if is_folder {
            drop_ins(&path, files)?;
        } else if name.as_encoded_bytes().ends_with(b".conf") {
            files.push(path);
        }
    }
    Ok(())
}

/// The text of a configuration file, up to `MAX_BYTES`. A FIFO is refused rather than waited for.
pub(crate) fn text(path: &Path) -> Result<String, ConfigError> {
    let mut text = String::new();
    let open = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path);
    let read = open.and_then(|file| {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        file.take(MAX_BYTES + 1).read_to_string(&mut text)
    });
    read.map_err(ConfigError::read(path))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ConfigError::Limit {
            place: path.display().to_string(),
            cause: format!("more than {MAX_BYTES} bytes, which steliad does not read"),
        });
    }
    Ok(text)
}
