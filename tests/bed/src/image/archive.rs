//! Reproducible archives: sorted, without times, owned by root.
//!
//! The documents of the OCI image format are plain JSON, forty lines here and in [`super`]. The
//! crate `oci-spec` has types for them, but brings fourteen more crates, most of them for macros.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest as hash};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

/// A file of an archive.
pub(super) struct Entry {
    pub(super) content: Vec<u8>,
    mode: u32,
}

impl Entry {
    pub(super) fn file(content: impl Into<Vec<u8>>) -> Self {
        Self { content: content.into(), mode: 0o644 }
    }

    pub(super) fn program(content: Vec<u8>) -> Self {
        Self { content, mode: 0o755 }
    }
}

/// Builds a tar archive of files and their folders.
pub(super) fn tar(files: &BTreeMap<String, Entry>) -> Result<Vec<u8>> {
    let folders: BTreeSet<&str> =
        files.keys().flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..=at])).collect();
    let mut archive = Builder::new(Vec::new());
    for folder in folders {
        append(&mut archive, folder, EntryType::Directory, 0o755, &[])?;
    }
    for (path, entry) in files {
        append(&mut archive, path, EntryType::Regular, entry.mode, &entry.content)?;
    }
    Ok(archive.into_inner()?)
}

/// Appends an entry in the format of POSIX 1988, `ustar`.
fn append(
    archive: &mut Builder<Vec<u8>>,
    path: &str,
    kind: EntryType,
    mode: u32,
    content: &[u8],
) -> Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(u64::try_from(content.len())?);
    header.set_path(path).with_context(|| path.to_owned())?;
    header.set_cksum();
    Ok(archive.append(&header, content)?)
}

/// Compresses without a name or a time.
pub(super) fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = Command::new("gzip")
        .args(["--no-name", "--stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start gzip")?;
    let mut input = gzip.stdin.take().context("gzip has no standard input")?;
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // If gzip ends early, its exit status reports it.
            let _ = input.write_all(content);
        });
        gzip.wait_with_output()
    })?;
    ensure!(output.status.success(), "gzip: {}", output.status);
    Ok(output.stdout)
}

pub(super) fn digest(content: &[u8]) -> String {
    let hash = hash(&SHA256, content);
    hash.as_ref().iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// The parts of an image, by their digests.
#[derive(Default)]
pub(super) struct Blobs {
    files: BTreeMap<String, Entry>,
}

impl Blobs {
    /// Adds a part. Returns its descriptor.
    pub(super) fn add(&mut self, kind: &str, content: Vec<u8>) -> Value {
        let digest = digest(&content);
        let descriptor = json!({"mediaType": kind, "digest": digest, "size": content.len()});
        self.files.insert(format!("blobs/{}", digest.replace(':', "/")), Entry::file(content));
        descriptor
    }

    pub(super) fn add_json(&mut self, kind: &str, content: &Value) -> Value {
        self.add(kind, content.to_string().into_bytes())
    }

    /// Writes the archive. Returns its size in bytes.
    pub(super) fn write(mut self, index: &Value, out: &Path) -> Result<u64> {
        let layout = json!({"imageLayoutVersion": "1.0.0"}).to_string();
        self.files.insert("oci-layout".to_owned(), Entry::file(layout));
        self.files.insert("index.json".to_owned(), Entry::file(index.to_string()));
        let archive = tar(&self.files)?;
        if let Some(folder) = out.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(out, &archive)?;
        Ok(u64::try_from(archive.len())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_sorted_and_without_times_or_owners() {
        let content = vec![b'x'; 600];
        let files = BTreeMap::from([
            ("run".to_owned(), Entry::program(content.clone())),
            ("etc/ssl/certs".to_owned(), Entry::file("pem")),
            ("etc/passwd".to_owned(), Entry::file("")),
        ]);
        let archive = tar(&files).unwrap();
        // The files have no block of content, one and two. The end is two blocks.
        assert_eq!(archive.len(), (5 + 3 + 2) * 512);
        let mut found = Vec::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert!(header.as_ustar().is_some());
            let of = [header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap()];
            assert_eq!(of, [0; 3]);
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            found.push((path, header.mode().unwrap(), header.size().unwrap()));
        }
        let expected = [
            ("etc/", 0o755, 0),
            ("etc/ssl/", 0o755, 0),
            ("etc/passwd", 0o644, 0),
            ("etc/ssl/certs", 0o644, 3),
            ("run", 0o755, 600),
        ];
        assert_eq!(found, expected.map(|(path, mode, size)| (path.to_owned(), mode, size)));
    }

    #[test]
    fn a_path_that_the_format_has_no_room_for_is_refused() {
        let files = BTreeMap::from([("x".repeat(101), Entry::file(""))]);
        assert!(tar(&files).is_err());
    }
}
