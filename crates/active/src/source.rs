//! Bytes that are read at offsets.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Bytes that are read at offsets, as by pread(2). A file is one.
pub trait Source {
    /// Reads some bytes from `offset` on; 0 at the end.
    ///
    /// # Errors
    /// Those of the read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads all of `buffer`.
    ///
    /// # Errors
    /// Those of the read, and `UnexpectedEof` where there are not so many bytes.
    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    offset += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Source for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }
}

impl Source for [u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|from| self.get(from..)).unwrap_or(&[]);
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }
}

impl Source for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.as_slice().read_at(buffer, offset)
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        (**self).read_at(buffer, offset)
    }
}

/// A stream that can seek, as a [`Source`]. No other code uses its position.
#[derive(Debug)]
pub struct Seeking<T>(Mutex<T>);

impl<T: Read + Seek> Seeking<T> {
    /// Takes the stream.
    pub fn new(stream: T) -> Seeking<T> {
        Seeking(Mutex::new(stream))
    }
}

impl<T: Read + Seek> Source for Seeking<T> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.seek(SeekFrom::Start(offset))?;
        stream.read(buffer)
    }
}
