//! The group's folder on the backing store, with real I/O. Each call may hang as long as the store
//! does: they are made by one thread that nothing else waits for.
//!
//! What the files are and how they are made is decided in `membership` ([`GroupFile`]). Beside them
//! are `secret`, and files named `tmp.*` that are being written.

mod life;
pub(crate) mod secret;

pub(crate) use life::{Known, Life};

use crate::error::GroupError;
use crate::meeting::{Meeting, Note};
use forebay_membership::{Card, GivenUp, GroupFile, Member, TextError, View};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What others must not be able to do with the folder.
const WRITE_OTHERS: u32 = 0o022;
/// The largest file that is read: a view of 65,535 seats has less.
const TEXT_MAX: u64 = 4 << 20;
/// How often what is in a folder that goes is removed, and how long others have between.
const TRIES: u32 = 50;
const NAP: Duration = Duration::from_millis(10);
/// What is tried when the folder is opened, as errors say it.
pub(crate) const OPENING: &str = "opening the folder";
/// What the names of files that are being written begin with.
const TEMPORARY: &str = "tmp.";

/// A group's folder: a directory of this user that no other may write.
pub(crate) struct GroupFolder {
    path: PathBuf,
    at: OwnedFd,
}

/// The names in a folder, at one moment.
#[derive(Default)]
pub(crate) struct Names {
    pub files: Vec<GroupFile>,
    /// What nodes have noted that look for the others of their job.
    pub notes: Vec<String>,
    /// Files that are, or were, being written.
    pub temporary: Vec<String>,
    /// There are others, which no group has made.
    pub has_others: bool,
}

/// What a group has given up of a node: whether `oldest`, the first life that had a pool, is of it.
/// For those that take no part in the group, and have what one of its nodes has left. `None` too if
/// there is no such folder any more. It takes as long as the store does.
///
/// # Errors
/// The folder cannot be read, or is not this user's alone.
pub fn given_up(folder: &Path, oldest: Member) -> Result<Option<GivenUp>, GroupError> {
    let there = match GroupFolder::open_there(folder) {
        Err(GroupError::File { what: OPENING, errno: Errno::NOENT, .. }) => return Ok(None),
        there => there?,
    };
    there.change()?;
    let given = there.newest_view()?.and_then(|view| view.given_up_of(oldest.node));
    Ok(given.filter(|given| given.covers(oldest)))
}

impl GroupFolder {
    /// Opens the folder, or makes it with mode 0700. The folder that it is in has to be there.
    ///
    /// # Errors
    /// It is a symbolic link or no folder, belongs to another user, or others may write it.
    pub fn open(path: &Path) -> Result<Self, GroupError> {
        let failed = |what| move |errno| GroupError::File { path: path.to_owned(), what, errno };
        match rustix::fs::mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open_there(path),
            Err(errno) => Err(failed("making the folder")(errno)),
        }
    }

    /// The same of one that is there.
    fn open_there(path: &Path) -> Result<Self, GroupError> {
        let failed = |what| move |errno| GroupError::File { path: path.to_owned(), what, errno };
        let refused = |why: String| GroupError::Refused { path: path.to_owned(), why };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at =
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::LOOP | Errno::NOTDIR => refused(
                    "a symbolic link or no folder: name the folder itself, or remove it".to_owned(),
                ),
                errno => failed(OPENING)(errno),
            })?;
        let found = rustix::fs::fstat(&at).map_err(failed("looking at the folder"))?;
        let own = rustix::process::geteuid().as_raw();
        if found.st_uid != own {
            let why = format!("belongs to user {}, this is user {own}", found.st_uid);
            return Err(refused(format!("{why}: a group is one user; name another folder")));
        }
        if found.st_mode & WRITE_OTHERS != 0 {
            let mode = found.st_mode & 0o7777;
            return Err(refused(format!("has mode {mode:04o}: others may write it; chmod 700")));
        }
        Ok(Self { path: path.to_owned(), at })
    }

    fn path_of(&self, name: &str) -> PathBuf {
        match name {
            "" => self.path.clone(),
            name => self.path.join(name),
        }
    }

    fn failed(&self, name: &str, what: &'static str, errno: Errno) -> GroupError {
        GroupError::File { path: self.path_of(name), what, errno }
    }

    pub(crate) fn refused(&self, name: &str, why: impl Into<String>) -> GroupError {
        GroupError::Refused { path: self.path_of(name), why: why.into() }
    }

    /// The names in the folder.
    fn list(&self) -> Result<Names, GroupError> {
        let failed = |errno| GroupError::File { path: self.path.clone(), what: "listing", errno };
        let mut names = Names::default();
        for entry in Dir::read_from(&self.at).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Names that are no UTF-8 are none of ours.
            let name = entry.file_name().to_str().unwrap_or_default();
            match GroupFile::of_name(name) {
                Some(file) => names.files.push(file),
                None if Note::of_name(name).is_some() => names.notes.push(name.to_owned()),
                None if name.starts_with(TEMPORARY) => names.temporary.push(name.to_owned()),
                None if [".", "..", secret::NAME].contains(&name) => {}
                None => names.has_others = true,
            }
        }
        Ok(names)
    }

    /// The content of a file, with its status; `None` if it is not there.
    fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Stat)>, GroupError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.at, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.failed(name, "opening", errno)),
        };
        let found = rustix::fs::fstat(&file).map_err(|e| self.failed(name, "looking at", e))?;
        let mut text = Vec::new();
        match File::from(file).take(TEXT_MAX).read_to_end(&mut text) {
            Ok(_) => Ok(Some((text, found))),
            Err(error) => Err(self.failed(name, "reading", errno_of(&error))),
        }
    }

    /// A new file of mode 0600 with this content, which is on the store when this returns.
    fn write(&self, name: &str, content: &[u8]) -> Result<(), GroupError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.at, name, flags, mode)
            .map_err(|errno| self.failed(name, "making", errno))?;
        let mut file = File::from(file);
        let written = file.write_all(content).and_then(|()| file.sync_all());
        written.map_err(|error| {
            let _ = self.remove(name);
            self.failed(name, "writing", errno_of(&error))
        })
    }

    /// Gives a file that was written beside its name, if that is free, and takes away the one
    /// beside. Whether it was free.
    fn link(&self, beside: &str, name: &str) -> Result<bool, GroupError> {
        let linked = rustix::fs::linkat(&self.at, beside, &self.at, name, AtFlags::empty());
        let is_made = match linked {
            Ok(()) => Ok(true),
            // The answer to a first attempt may be lost, as over NFS, and the file there: then it
            // has two names.
            Err(errno) => match rustix::fs::statat(&self.at, beside, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if found.st_nlink == 2 => Ok(true),
                _ if errno == Errno::EXIST => Ok(false),
                _ => Err(self.failed(name, "linking", errno)),
            },
        };
        let _ = self.remove(beside);
        if is_made == Ok(true) {
            self.sync()?;
        }
        is_made
    }

    /// Brings the names to the store, where that is a call of its own.
    fn sync(&self) -> Result<(), GroupError> {
        let failed = |errno| GroupError::File { path: self.path.clone(), what: "syncing", errno };
        match rustix::fs::fsync(&self.at) {
            // Of some stores folders cannot be synced, and need not.
            Err(Errno::INVAL) => Ok(()),
            synced => synced.map_err(failed),
        }
    }

    /// The same folder once more.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn again(&self) -> Result<Self, GroupError> {
        let at = rustix::io::fcntl_dupfd_cloexec(&self.at, 0);
        let at = at.map_err(|errno| self.failed("", "opening the folder again", errno))?;
        Ok(Self { path: self.path.clone(), at })
    }

    /// Whether the path still leads to this folder. A member that was the last one removes it.
    ///
    /// # Errors
    /// The path cannot be looked at.
    pub fn is_in_place(&self) -> Result<bool, GroupError> {
        self.is_at(&self.path)
    }

    fn is_at(&self, path: &Path) -> Result<bool, GroupError> {
        let failed = |errno| self.failed("", "looking at the folder", errno);
        let own = rustix::fs::fstat(&self.at).map_err(failed)?;
        match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Removes the folder, unless a life in it has not ended, or it has files that no group has
    /// made.
    ///
    /// It gets another name first, so that from then on none comes in by its path; one that has
    /// come in meanwhile has its card in the folder, which gets its name back, or sees that it is
    /// not in place any more, and begins again.
    fn remove_if_done(&self) -> Result<(), GroupError> {
        let is_done = |names: &Names| !names.has_others && names.cards().is_empty();
        if !is_done(&self.list()?) || !self.is_in_place()? {
            return Ok(());
        }
        let mut mark = [0; 8];
        secret::fill(&mut mark)?;
        let mut aside = OsString::from(self.path.as_os_str());
        aside.push(format!(".ended-{:016x}", u64::from_le_bytes(mark)));
        let failed = |what| move |errno| self.failed("", what, errno);
        match rustix::fs::renameat(CWD, &self.path, CWD, &aside) {
            // Another one that leaves removes it.
            Err(Errno::NOENT) => return Ok(()),
            moved => moved.map_err(failed("moving away"))?,
        }
        let back = rustix::fs::RenameFlags::NOREPLACE;
        let move_back = || rustix::fs::renameat_with(CWD, &aside, CWD, &self.path, back);
        if !self.is_at(Path::new(&aside))? {
            // It is the one that was made after another has removed this one.
            return move_back().map_err(failed("moving back"));
        }
        for _ in 0..TRIES {
            let names = self.list()?;
            if !is_done(&names) {
                // One that has made another folder meanwhile is not to lose it.
                match move_back() {
                    // The life here sees that, and takes its card away.
                    Err(Errno::EXIST) => {}
                    back => return back.map_err(failed("moving back")),
                }
            } else {
                let files = names.files.iter().map(GroupFile::to_string).chain(names.temporary);
                let files = files.chain(names.notes).chain([secret::NAME.to_owned()]);
                files.into_iter().try_for_each(|name| self.remove(&name))?;
                match rustix::fs::unlinkat(CWD, &aside, AtFlags::REMOVEDIR) {
                    // One that begins has come in before it got its other name.
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                    removed => return removed.map_err(failed("removing")),
                }
            }
            std::thread::sleep(NAP);
        }
        let aside = Path::new(&aside).display();
        Err(self.refused("", format!("is {aside} now, and others still use it: remove that")))
    }

    /// Notes that a node is there, and returns who has come of its job. The note is made anew if it
    /// is gone, and something is changed in any case: a client of NFS then looks at the store.
    pub fn meet(&self, meeting: &Meeting) -> Result<BTreeMap<String, u32>, GroupError> {
        self.make(&meeting.note(), OFlags::empty())?;
        self.change()?;
        Ok(meeting.came(&self.list()?.notes))
    }

    /// Makes an empty file.
    fn make(&self, name: &str, how: OFlags) -> Result<(), GroupError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | how;
        let made = rustix::fs::openat(&self.at, name, flags, Mode::RUSR | Mode::WUSR);
        made.map(drop).map_err(|errno| self.failed(name, "making", errno))
    }

    /// Changes the folder: what a client of NFS knows of it is old then.
    fn change(&self) -> Result<(), GroupError> {
        let mut mark = [0; 8];
        secret::fill(&mut mark)?;
        let beside = format!("{TEMPORARY}looks.{:016x}", u64::from_le_bytes(mark));
        self.make(&beside, OFlags::EXCL)?;
        self.remove(&beside)
    }

    /// The newest view, if there is any.
    fn newest_view(&self) -> Result<Option<View>, GroupError> {
        loop {
            let number = self.list()?.newest();
            if number == 0 {
                return Ok(None);
            }
            // One that is removed meanwhile is followed by newer ones.
            if let Some(view) = self.view(number)? {
                return Ok(Some(view));
            }
        }
    }

    /// Refuses a life that goes on with the pool of one that was given up.
    ///
    /// # Errors
    /// It was ([`GroupError::GivenUp`]), or a call fails.
    pub fn refuse_given_up(&self, oldest: Member) -> Result<(), GroupError> {
        let given = self.newest_view()?.and_then(|view| view.given_up_of(oldest.node));
        match given.filter(|given| given.covers(oldest)) {
            Some(GivenUp { member, view }) => {
                Err(GroupError::GivenUp { member, view, folder: self.path.clone() })
            }
            None => Ok(()),
        }
    }

    /// Takes back what a node has noted; the last one removes the folder.
    pub fn part(&self, meeting: &Meeting) -> Result<(), GroupError> {
        self.remove(&meeting.note())?;
        match self.list()?.notes.is_empty() {
            true => self.remove_if_done(),
            false => Ok(()),
        }
    }

    /// Removes a file, if it is there.
    fn remove(&self, name: &str) -> Result<(), GroupError> {
        match rustix::fs::unlinkat(&self.at, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed(name, "removing", errno)),
        }
    }

    /// The view of this number, if it is there.
    fn view(&self, number: u32) -> Result<Option<View>, GroupError> {
        let name = GroupFile::View(number).to_string();
        let Some((text, _)) = self.read(&name)? else { return Ok(None) };
        View::of_text(number, &text).map(Some).map_err(|error| self.text(&name, error))
    }

    /// The card of a life, which has looked so often; `None` if it has looked again meanwhile.
    fn card(&self, member: Member, looks: u64) -> Result<Option<Card>, GroupError> {
        self.card_in(member, GroupFile::Member(member, looks))
    }

    /// The card of a life in this file; `None` if that is not there any more.
    fn card_in(&self, member: Member, file: GroupFile) -> Result<Option<Card>, GroupError> {
        let name = file.to_string();
        let Some((text, _)) = self.read(&name)? else { return Ok(None) };
        Card::of_text(member, &text).map(Some).map_err(|error| self.text(&name, error))
    }

    fn text(&self, name: &str, error: TextError) -> GroupError {
        GroupError::Text { path: self.path_of(name), error }
    }
}

impl Names {
    /// The lives that have cards, each with the most looks that are seen: a listing during a rename
    /// may have both names.
    fn cards(&self) -> BTreeMap<Member, u64> {
        let mut cards = BTreeMap::new();
        for file in &self.files {
            if let GroupFile::Member(member, looks) = *file {
                let most = cards.entry(member).or_default();
                *most = looks.max(*most);
            }
        }
        cards
    }

    /// The lives that are known: those that have cards, and those that have ended by themselves.
    fn lives(&self) -> impl Iterator<Item = Member> {
        self.files.iter().filter_map(|file| match file {
            GroupFile::Member(member, _) | GroupFile::Left(member) => Some(*member),
            GroupFile::View(_) | GroupFile::Plea(..) => None,
        })
    }

    /// The highest number of a view.
    fn newest(&self) -> u32 {
        let number = |file: &GroupFile| match file {
            GroupFile::View(number) => *number,
            _ => 0,
        };
        self.files.iter().map(number).max().unwrap_or(0)
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests;
