//! Reproducible archives: sorted, without times, owned by root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use aws_lc_rs::digest::{SHA256, digest as hash};
use serde_json::{Value, json};

const BLOCK: usize = 512;

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
    let folders: BTreeSet<String> = files
        .keys()
        .flat_map(|path| path.match_indices('/').map(|(at, _)| path[..=at].to_owned()))
        .collect();
    let mut archive = Vec::new();
    for folder in folders {
        archive.extend(header(&folder, b'5', 0o755, 0)?);
    }
    for (path, entry) in files {
        archive.extend(header(path, b'0', entry.mode, entry.content.len())?);
        archive.extend(&entry.content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    Ok(archive)
}

/// Header in the format of POSIX 1988, `ustar`.
fn header(path: &str, kind: u8, mode: u32, size: usize) -> Result<[u8; BLOCK]> {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    ensure!(path.len() < 100, "{path}: too long a name");
    put(0, path);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, "00000000000");
    put(148, "        ");
    put(257, "ustar\u{0}00");
    header[156] = kind;
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\u{0} ").as_bytes());
    Ok(header)
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
