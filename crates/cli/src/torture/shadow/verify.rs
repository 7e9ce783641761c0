//! Comparing files with what they must hold.

use super::{COMMON, Shadow};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that are compared at a time.
pub(super) const PIECE: usize = 256 << 10;

/// How bytes differ from what is wanted of the same length, if they do.
pub fn difference(got: &[u8], wanted: &[u8]) -> Option<String> {
    if got == wanted {
        return None;
    }
    let differs = || (0..wanted.len()).filter(|&i| got.get(i) != Some(&wanted[i]));
    let zeros = differs().filter(|&i| got.get(i) == Some(&0)).count();
    Some(format!(
        "{} of {} bytes are wrong, the first after {}; {zeros} are zero",
        differs().count(),
        wanted.len(),
        differs().next().unwrap_or(wanted.len()),
    ))
}

impl Shadow {
    /// Compares `file` with what it must hold, as it lies on the store: past Forebay, also in a
    /// program that it watches.
    pub fn verify_stored(&self, file: u64) -> io::Result<(u64, Option<String>)> {
        use rustix::fs::{Mode, OFlags, open};
        let size = self.size(file)? as usize;
        let path = self.path(file);
        let wrong =
            |what: String| Ok((0, Some(format!("{}: on the store {what}", path.display()))));
        let opened = match open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(opened) => opened,
            Err(errno) if size > 0 => return wrong(format!("after it was synced: {errno}")),
            Err(_) => return Ok((0, None)),
        };
        let length = rustix::fs::fstat(&opened)?.st_size as usize;
        if file != COMMON && length != size {
            return wrong(format!("{length} bytes instead of {size} after it was synced"));
        }
        let (mut got, mut wanted) = (vec![0; size], vec![0; size]);
        self.shadows[file as usize].read_exact_at(&mut wanted, 0)?;
        let read_at =
            |bytes: &mut [u8], at: u64| rustix::io::pread(&opened, bytes, at).map_err(Into::into);
        self.read_with(file, read_at, &mut got, 0)?;
        match difference(&got, &wanted) {
            None => Ok((size as u64, None)),
            Some(what) => wrong(format!("after it was synced {what}")),
        }
    }

    /// Compares `file` with what it must hold; the bytes compared, and what is wrong.
    pub fn verify(&self, file: u64) -> io::Result<(u64, Option<String>)> {
        let wanted = self.size(file)?;
        let path = self.path(file);
        let found = match File::open(&path) {
            Ok(found) => found,
            // None and an empty one are taken for the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound && wanted == 0 => {
                return Ok((0, None));
            }
            Err(error) => return Ok((0, Some(format!("{}: {error}", path.display())))),
        };
        let size = found.metadata()?.len();
        if file != COMMON && size != wanted {
            let wrong = format!("{}: {size} bytes instead of {wanted}", path.display());
            return Ok((0, Some(wrong)));
        }
        let (mut at, size) = (0, wanted);
        while at < size {
            let length = PIECE.min((size - at) as usize);
            match self.verify_range(file, &found, at, length) {
                Ok(None) => {}
                Ok(Some(wrong)) => return Ok((at, Some(wrong))),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok((at, Some(format!("{error}, and fstat said {size} bytes"))));
                }
                Err(error) => return Err(error),
            }
            at += length as u64;
        }
        Ok((size, None))
    }

    /// Compares a range of an open file with what it must hold; what is wrong, if anything.
    pub fn verify_range(
        &self,
        file: u64,
        found: &File,
        offset: u64,
        length: usize,
    ) -> io::Result<Option<String>> {
        let mut got = vec![0; length];
        self.read(file, found, &mut got, offset)?;
        self.compare(file, &got, offset)
    }

    /// Compares bytes that were found at `offset` with what must be there; what is wrong, if
    /// anything.
    pub fn compare(&self, file: u64, got: &[u8], offset: u64) -> io::Result<Option<String>> {
        let mut wanted = vec![0; got.len()];
        self.shadows[file as usize].read_exact_at(&mut wanted, offset)?;
        let path = self.path(file);
        Ok(difference(got, &wanted)
            .map(|what| format!("{}: from {offset} on {what}", path.display())))
    }
}
