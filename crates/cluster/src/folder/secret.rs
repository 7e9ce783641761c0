//! What the members of a group know and others do not: 32 bytes that the first of them makes.

use super::{GroupFolder, TEMPORARY};
use crate::error::GroupError;
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::FileType;

pub(super) const NAME: &str = "secret";
const MODE: u32 = 0o600;
/// What the names of secrets that are being written begin with, after [`TEMPORARY`].
const BESIDE: &str = "secret.";

impl GroupFolder {
    /// The group's secret, which is made if there is none. It is there whole, or not.
    ///
    /// # Errors
    /// It is of another owner, mode or length, or no file.
    pub fn secret(&self) -> Result<[u8; 32], GroupError> {
        let secret = match self.read_secret()? {
            Some(secret) => secret,
            None => self.make_secret()?,
        };
        // Those that others still write come too late.
        for name in self.list()?.temporary {
            if name[TEMPORARY.len()..].starts_with(BESIDE) {
                self.remove(&name)?;
            }
        }
        Ok(secret)
    }

    fn make_secret(&self) -> Result<[u8; 32], GroupError> {
        let (mut secret, mut mark) = ([0; 32], [0; 8]);
        fill(&mut secret)?;
        fill(&mut mark)?;
        let beside = format!("{TEMPORARY}{BESIDE}{:016x}", u64::from_le_bytes(mark));
        self.write(&beside, &secret)?;
        let linked = self.link(&beside, NAME);
        // One that another has made meanwhile is the group's, also where it has removed this file.
        match (self.read_secret()?, linked) {
            (Some(secret), _) => Ok(secret),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => Err(self.refused(NAME, "was made, and is gone: start again")),
        }
    }

    fn read_secret(&self) -> Result<Option<[u8; 32]>, GroupError> {
        let Some((text, found)) = self.read(NAME)? else { return Ok(None) };
        let (own, mode) = (rustix::process::geteuid().as_raw(), found.st_mode & 0o7777);
        let what = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile if found.st_uid != own => {
                format!("belongs to user {}, this is user {own}", found.st_uid)
            }
            FileType::RegularFile if mode != MODE => format!("has mode {mode:04o}, not 0600"),
            FileType::RegularFile => match text.try_into() {
                Ok(secret) => return Ok(Some(secret)),
                Err(text) => format!("has {} bytes, not 32", text.len()),
            },
            _ => "is no file".to_owned(),
        };
        let remedy = "stop the group, remove it and start the group again, which makes another";
        Err(self.refused(NAME, format!("{what}: {remedy}")))
    }
}

/// Fills with random bytes of the kernel.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<(), GroupError> {
    let failed = |_| GroupError::System("the kernel gives no random bytes".to_owned());
    SystemRandom::new().fill(bytes).map_err(failed)
}
