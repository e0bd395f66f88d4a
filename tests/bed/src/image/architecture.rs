//! Architectures that an image is written for, by their names in OCI, Rust and Debian.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// Start of an ELF header up to `e_machine`, two bytes in the file's own byte order.
const HEADER: usize = 20;

/// Architecture of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// 64-bit ARM.
    Arm64,
}

impl Architecture {
    /// Architecture of this machine.
    pub(super) fn here() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("no image for {other}"),
        }
    }

    /// Reads the architecture from a program's ELF header.
    pub(super) fn of(program: &Path) -> Result<Self> {
        let mut header = [0; HEADER];
        let read = File::open(program).and_then(|mut file| file.read_exact(&mut header));
        read.with_context(|| program.display().to_string())?;
        Self::of_header(&header).with_context(|| program.display().to_string())
    }

    /// Source: ELF-64 object file format; `EM_X86_64` and `EM_AARCH64` in elf.h.
    fn of_header(header: &[u8; HEADER]) -> Result<Self> {
        ensure!(header.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF program");
        match u16::from_le_bytes([header[18], header[19]]) {
            62 => Ok(Self::Amd64),
            183 => Ok(Self::Arm64),
            other => bail!("no image for ELF machine {other}: must be 62 (amd64) or 183 (arm64)"),
        }
    }

    /// Name in OCI and in Debian.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Target triple of Rust.
    pub(super) fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Folder of Debian's shared libraries for this architecture.
    pub(super) fn libraries(self) -> &'static Path {
        Path::new(match self {
            Self::Amd64 => "/lib/x86_64-linux-gnu",
            Self::Arm64 => "/lib/aarch64-linux-gnu",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_is_read_from_the_program() {
        let program = std::env::current_exe().unwrap();
        assert_eq!(Architecture::of(&program).unwrap(), Architecture::here().unwrap());
        let header = |machine: u8| {
            let mut header = *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\0\0";
            header[18] = machine;
            Architecture::of_header(&header)
        };
        assert_eq!(header(62).unwrap(), Architecture::Amd64);
        assert_eq!(header(183).unwrap(), Architecture::Arm64);
        let error = header(243).unwrap_err().to_string();
        assert!(error.contains("ELF machine 243"), "{error}");
        assert!(Architecture::of(Path::new("Cargo.toml")).is_err());
    }
}
