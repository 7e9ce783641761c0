//! A variable of the environment that the process was started with, for builds with debug
//! assertions: what injects faults and shortens timers is asked before libc knows the environment,
//! and must not allocate.

use core::ffi::CStr;
use rustix::fs::{Mode, OFlags};

/// The value of a variable as it was at the first look, without allocation.
#[derive(Clone, Copy)]
pub struct Variable {
    bytes: [u8; 200],
    length: usize,
}

impl Variable {
    /// The variable `name`, given with its `=`, as the process was started with it, also before
    /// libc knows it; empty if it is not set, or too long.
    pub fn of(name: &[u8]) -> Variable {
        let mut variable = Variable { bytes: [0; 200], length: 0 };
        let Ok(file) = rustix::fs::openat(
            rustix::fs::CWD,
            c"/proc/self/environ",
            OFlags::CLOEXEC,
            Mode::empty(),
        ) else {
            return variable;
        };
        let (mut chunk, mut entry, mut length) = ([0u8; 4096], [0u8; 256], 0);
        while let Ok(count @ 1..) = rustix::io::read(&file, &mut chunk[..]) {
            for &byte in &chunk[..count] {
                if byte != 0 {
                    if let Some(place) = entry.get_mut(length) {
                        *place = byte;
                    }
                    length += 1;
                    continue;
                }
                let value = entry.get(..length).and_then(|text| text.strip_prefix(name));
                if let Some(value) = value.filter(|value| value.len() < variable.bytes.len()) {
                    variable.bytes[..value.len()].copy_from_slice(value);
                    variable.length = value.len();
                }
                length = 0;
            }
        }
        variable
    }

    /// `text`, or nothing if it is too long.
    pub fn from(text: &str) -> Variable {
        let mut variable = Variable { bytes: [0; 200], length: 0 };
        if text.len() < variable.bytes.len() {
            variable.bytes[..text.len()].copy_from_slice(text.as_bytes());
            variable.length = text.len();
        }
        variable
    }

    /// Whether a restriction to the role that this names, if it names any, admits `role`.
    pub fn allows(&self, role: &[u8]) -> bool {
        self.length == 0 || self.bytes() == role
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Whether it is not set, or has no value.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Leaves the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub fn is(&self, other: &[u8]) -> bool {
        self.length > 0 && self.bytes() == other
    }

    /// As a path.
    pub fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}
