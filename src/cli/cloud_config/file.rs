//! Output file of `--out`. The text is first written to a temporary file in the same folder. This
//! file is renamed when the text is complete. Only the file's owner can read it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// Checks that the path names a file, new or existing, in an existing folder.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    ensure!(path.file_name().is_some() && !path.is_dir(), "must be the name of a file");
    let folder = folder(path);
    ensure!(folder.is_dir(), "there is no folder {}", folder.display());
    Ok(())
}

/// Writes the text into a new file at the path. An existing file at the path is replaced.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut name = path.file_name().context("must be the name of a file")?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = folder(path).join(name);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        // An error of this removal is ignored, because it would hide the error of the write.
        let _ = fs::remove_file(&part);
    }
    Ok(written?)
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}
