//! The stage-in of one pool's files: they are opened as a program under `forebay run` opens them,
//! and the node manager is asked for their blocks, a few at a time.

use super::Summary;
use super::found::Found;
use super::progress::{Amount, Progress};
use crate::named::Pool;
use crate::signals;
use crate::text::{bytes, files};
use crate::watch::Watch;
use forebay_client::{OpenFlags, Session};
use forebay_node::Connection;
use forebay_node::log::shown;
use forebay_pool::message::{Message, STAGE_IN_BLOCKS, StageEnd};
use forebay_pool::{FileId, TierId};
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Orders that are not answered yet: enough for the manager's threads to have work.
const UNDER_WAY: usize = 16;
/// How often a file is asked for again that another node, or another file with its name, has taken.
const TRIES: u32 = 3;
/// How long processes may keep a file, or a block of it, locked, while nothing of it comes.
const HELD: Duration = Duration::from_secs(30);
/// When it is asked again for what another thread has.
const AGAIN: Duration = Duration::from_millis(10);
/// How long the manager may take to say that it serves.
const ANSWER: Duration = Duration::from_secs(60);

/// Blocks of an open file that the manager is asked for.
#[derive(Clone, Copy)]
struct Piece {
    /// Which file, among those that are open.
    file: usize,
    first: u64,
    blocks: u16,
}

/// A file that is being staged in.
struct Open {
    path: PathBuf,
    fd: RawFd,
    record: (FileId, u32),
    size: u64,
    /// The next block that was not asked for yet, and how many there are.
    next: u64,
    blocks: u64,
    /// Pieces that were asked for and not answered.
    under_way: usize,
    /// Pieces that are to be asked for again.
    again: usize,
    tries: u32,
    /// Since when nothing has come because processes keep it locked.
    held: Option<Instant>,
    /// Of some block a program has written a part that the store lacks.
    is_partial: bool,
    failed: Option<String>,
}

impl Open {
    fn is_over(&self) -> bool {
        self.under_way == 0
            && (self.failed.is_some() || self.again == 0 && self.next >= self.blocks)
    }
}

/// What is under way in one pool.
pub struct Staging<'a> {
    pool: &'a Pool,
    session: Session,
    connection: Connection,
    left: VecDeque<Found>,
    open: HashMap<usize, Open>,
    again: VecDeque<Piece>,
    asked: HashMap<u32, (Piece, TierId)>,
    next: usize,
    ticket: u32,
    tier: TierId,
    /// No other tier is taken.
    is_fixed: bool,
    /// Why no tier takes more: in short, and for the end, when all is answered.
    full: Option<(String, &'static str)>,
    bucket: u64,
    done: Amount,
    summary: &'a mut Summary,
    progress: &'a mut Progress,
}

impl<'a> Staging<'a> {
    /// Brings `found` into the tier of this name, or into those that have room. What is not staged
    /// in is in the summary.
    ///
    /// # Errors
    /// Why nothing more can be staged in; all that was under way is in the summary then.
    pub fn stage(
        pool: &'a Pool,
        found: Vec<Found>,
        tier: Option<&str>,
        summary: &'a mut Summary,
        progress: &'a mut Progress,
    ) -> Result<(), String> {
        let begun = Staging::tier_of(pool, tier).and_then(|tier| {
            let connection = connect(pool)?;
            Ok((tier, connection, pool.join("stage-in")?))
        });
        let (number, connection, session) = begun
            .map_err(|error| format!("nothing of {} was staged in: {error}", files(found.len())))?;
        let mut staging = Staging {
            pool,
            session,
            connection,
            left: found.into(),
            open: HashMap::new(),
            again: VecDeque::new(),
            asked: HashMap::new(),
            next: 0,
            ticket: 0,
            tier: number,
            is_fixed: tier.is_some(),
            full: None,
            bucket: pool.segment.bucket_bytes() as u64,
            done: Amount::default(),
            summary,
            progress,
        };
        let result = staging.work();
        staging.give_up(&result);
        staging.tell_of_room();
        result
    }

    /// The number of the tier of this name.
    pub fn tier_of(pool: &Pool, name: Option<&str>) -> Result<TierId, String> {
        let Some(name) = name else { return Ok(TierId::RAM) };
        let all: Vec<_> = tiers(pool).map(|tier| (tier, tier_name(pool, tier))).collect();
        let found = all.iter().find(|(_, known)| known == name).map(|(tier, _)| *tier);
        found.ok_or_else(|| {
            let names: Vec<_> = all.into_iter().map(|(_, name)| name).collect();
            format!("--tier {name}: there is no such tier; there are: {}", names.join(", "))
        })
    }

    fn work(&mut self) -> Result<(), String> {
        let mut watch = Watch::default();
        loop {
            // What is under way is not waited for: without us the manager gives it up.
            if signals::early().is_some() {
                return Ok(());
            }
            while self.asked.len() < UNDER_WAY {
                match self.next_piece() {
                    Some(piece) => self.ask(piece)?,
                    None => break,
                }
            }
            if self.asked.is_empty() {
                return Ok(());
            }
            watch.look(self.pool.manager())?;
            match self.connection.receive(Duration::from_millis(50)) {
                Ok(Some(answer)) => self.take(answer)?,
                Ok(None) => {}
                Err(_) => return Err(self.gone()),
            }
            let under_way: u64 = self.open.values().map(Open::done).sum::<u64>() * self.bucket;
            let bytes = self.done.bytes + under_way;
            self.progress.show(Amount { bytes, ..self.done });
        }
    }

    /// What to say when the node manager is gone.
    fn gone(&self) -> String {
        format!(
            "{}: the node manager has ended, or is of another version; what it had staged in is gone if no other has \
             taken its pool over. Start it again (`forebay up`), and give the command again",
            self.pool.place().display()
        )
    }

    /// The next blocks to be asked for, of a file that is opened if need be.
    fn next_piece(&mut self) -> Option<Piece> {
        while let Some(piece) = self.again.pop_front() {
            // One that has failed may be closed.
            let Some(open) = self.open.get_mut(&piece.file) else { continue };
            open.again -= 1;
            if open.failed.is_none() {
                return Some(piece);
            }
            self.close_if_over(piece.file);
        }
        loop {
            let open = self.open.get_mut(&self.next);
            if let Some(open) = open.filter(|open| open.failed.is_none() && open.next < open.blocks)
            {
                let blocks = (open.blocks - open.next).min(u64::from(STAGE_IN_BLOCKS)) as u16;
                let piece = Piece { file: self.next, first: open.next, blocks };
                open.next += u64::from(blocks);
                return Some(piece);
            }
            let found = self.left.pop_front()?;
            self.next += 1;
            self.begin(found);
        }
    }

    /// Opens a file, unless nothing of it can be staged in.
    fn begin(&mut self, found: Found) {
        if found.size == 0 {
            self.done = self.done.and(0);
            return self.summary.note_staged(0);
        }
        if let Some((full, _)) = &self.full {
            self.done = self.done.and(found.size);
            return self.summary.leave(&found.path, full);
        }
        match self.open(&found.path) {
            Ok((fd, record, size)) => {
                let open = Open {
                    path: found.path,
                    fd,
                    record,
                    size,
                    next: 0,
                    blocks: size.div_ceil(self.bucket),
                    under_way: 0,
                    again: 0,
                    tries: 0,
                    held: None,
                    is_partial: false,
                    failed: None,
                };
                self.open.insert(self.next, open);
                self.close_if_over(self.next);
            }
            Err(reason) => {
                self.done = self.done.and(found.size);
                self.summary.leave(&found.path, reason);
            }
        }
    }

    fn open(&self, path: &Path) -> Result<(RawFd, (FileId, u32), u64), String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // What is a FIFO by now does not make us wait.
        let flags =
            OpenFlags::RDONLY | OpenFlags::CLOEXEC | OpenFlags::NONBLOCK | OpenFlags::NOCTTY;
        let failed = |errno: Errno| std::io::Error::from(errno).to_string();
        let fd = self.session.open(CWD, &name, flags, Mode::empty()).map_err(failed)?;
        let ask = || {
            match self.session.file(fd) {
            Some(file) => file.to_stage().map_err(failed)?.ok_or(DIRECT.to_owned()),
            None => Err("it cannot be buffered: no place is left in the table of files, or its file system keeps no \
                         markers; see `forebay status`"
                .to_owned()),
        }
        };
        match ask() {
            Ok((file, generation, size)) => Ok((fd, (file, generation), size)),
            Err(reason) => {
                let _ = self.session.close(fd);
                Err(reason)
            }
        }
    }

    fn ask(&mut self, piece: Piece) -> Result<(), String> {
        let Some(open) = self.open.get_mut(&piece.file) else { return Ok(()) };
        self.ticket = self.ticket.wrapping_add(1);
        let order = Message::StageIn {
            file: open.record.0,
            generation: open.record.1,
            first: piece.first,
            blocks: piece.blocks,
            tier: self.tier.index() as u8,
            ticket: self.ticket,
        };
        // SAFETY: it is open until `close_if_over`, or `give_up`.
        let fd = unsafe { BorrowedFd::borrow_raw(open.fd) };
        if self.connection.send_with(order, fd).is_err() {
            return Err(self.gone());
        }
        open.under_way += 1;
        self.asked.insert(self.ticket, (piece, self.tier));
        Ok(())
    }

    /// Takes an answer of the manager.
    fn take(&mut self, answer: Message) -> Result<(), String> {
        let Message::StagedIn { ticket, blocks, end, came } = answer else { return Ok(()) };
        let Some((piece, tier)) = self.asked.remove(&ticket) else { return Ok(()) };
        self.summary.note_came(&tier_name(self.pool, tier), came.into());
        if let Some(open) = self.open.get_mut(&piece.file) {
            open.under_way -= 1;
            if blocks > 0 {
                open.held = None;
            }
        }
        let blocks = blocks.min(piece.blocks);
        let rest = Piece {
            first: piece.first + u64::from(blocks),
            blocks: piece.blocks - blocks,
            ..piece
        };
        match end {
            StageEnd::Done => {}
            StageEnd::Ends => return Err(self.gone()),
            StageEnd::Full | StageEnd::TierFailed => {
                self.go_lower(tier, end);
                match &self.full {
                    Some((full, _)) => self.fail(piece.file, full.clone()),
                    None => self.ask_again(rest),
                }
            }
            StageEnd::Busy => {
                std::thread::sleep(AGAIN);
                self.ask_again(rest);
            }
            StageEnd::Partial => {
                if let Some(open) = self.open.get_mut(&piece.file) {
                    open.is_partial = true;
                }
                self.ask_again(rest);
            }
            StageEnd::Changed => self.look_again(rest),
            StageEnd::Direct => self.fail(piece.file, DIRECT.to_owned()),
            StageEnd::Held => self.wait_for_holder(rest),
            StageEnd::Store(errno) => {
                let error = std::io::Error::from_raw_os_error(errno.into());
                self.fail(piece.file, format!("reading it from the store: {error}"));
            }
        }
        self.close_if_over(piece.file);
        Ok(())
    }

    /// A tier takes no more: the next one down is to, unless one was asked for.
    fn go_lower(&mut self, tier: TierId, end: StageEnd) {
        if self.full.is_some() || tier != self.tier {
            return;
        }
        let name = tier_name(self.pool, tier);
        let why = match end {
            StageEnd::TierFailed => format!("tier {name} has failed, and takes nothing"),
            _ => format!("tier {name} is full"),
        };
        let below = tiers(self.pool).find(|below| *below > tier).filter(|_| !self.is_fixed);
        if let Some(below) = below {
            let below_name = tier_name(self.pool, below);
            self.progress.tell(&format!("{why}; the rest goes to {below_name}"));
            self.tier = below;
            return;
        }
        let remedy = match self.is_fixed {
            true => {
                "leave out --tier so that the rest goes to other tiers, or make room with `forebay stage-out --drop PATH...`"
            }
            false => "no lower tier is left; make room with `forebay stage-out --drop PATH...`",
        };
        self.full = Some((why, remedy));
    }

    /// Says, once all is answered, what came to the tier that takes no more.
    fn tell_of_room(&self) {
        let Some((full, remedy)) = &self.full else { return };
        let name = tier_name(self.pool, self.tier);
        let came = bytes(self.summary.came.get(&name).copied().unwrap_or(0));
        self.progress.tell(&format!("{full}: {came} came there; {remedy}"));
    }

    fn ask_again(&mut self, piece: Piece) {
        if piece.blocks > 0
            && let Some(open) = self.open.get_mut(&piece.file)
        {
            open.again += 1;
            self.again.push_back(piece);
        }
    }

    /// Asks again for a file whose record is not what it was, if that is its own.
    fn look_again(&mut self, rest: Piece) {
        let Some(open) = self.open.get_mut(&rest.file) else { return };
        open.tries += 1;
        let found = self.session.file(open.fd).map(|file| file.to_stage());
        match found {
            Some(Ok(Some((file, generation, _)))) if open.tries <= TRIES => {
                open.record = (file, generation);
                self.ask_again(rest);
            }
            _ => self.fail(
                rest.file,
                "it was replaced, or other nodes have taken it, meanwhile; give the command again"
                    .to_owned(),
            ),
        }
    }

    /// Asks again for a file that a process keeps locked, for some time.
    fn wait_for_holder(&mut self, rest: Piece) {
        let Some(open) = self.open.get_mut(&rest.file) else { return };
        let since = *open.held.get_or_insert_with(Instant::now);
        if since.elapsed() < HELD {
            std::thread::sleep(AGAIN);
            return self.ask_again(rest);
        }
        let seconds = HELD.as_secs();
        self.fail(
            rest.file,
            format!(
                "processes have kept it, or a block of it, locked for {seconds} s, in which nothing of it came: `forebay \
                 status` names one that is stopped; give the command again when it goes on"
            ),
        );
    }

    fn fail(&mut self, file: usize, why: String) {
        if let Some(open) = self.open.get_mut(&file) {
            open.failed.get_or_insert(why);
        }
    }

    /// Closes a file of which nothing is left to be asked for.
    fn close_if_over(&mut self, file: usize) {
        let Some(open) = self.open.get(&file).filter(|open| open.is_over()) else { return };
        // What a flush of it reports is for those who wrote it.
        let _ = self.session.close(open.fd);
        match &open.failed {
            Some(why) => self.summary.leave(&open.path, why),
            None if open.is_partial => self.summary.leave(
                &open.path,
                "a program has written a part of a block, which the store lacks, and the rest of that block stays on the \
                 store; the other blocks are there. Give `forebay stage-out` of it, and then the command again",
            ),
            None => self.summary.note_staged(open.size),
        }
        self.done = self.done.and(open.size);
        self.open.remove(&file);
    }

    /// Closes what is open after an error or an interrupt, and notes what was not staged in.
    fn give_up(&mut self, result: &Result<(), String>) {
        let reason = match result {
            Ok(()) => "interrupted before all of it was there",
            Err(_) => "given up before all of it was there",
        };
        for (_, open) in std::mem::take(&mut self.open) {
            let _ = self.session.close(open.fd);
            self.summary.leave(&open.path, reason);
        }
        for found in std::mem::take(&mut self.left) {
            self.summary.leave(&found.path, reason);
        }
    }
}

impl Open {
    /// Blocks that were answered.
    fn done(&self) -> u64 {
        let pending = (self.under_way + self.again) as u64 * u64::from(STAGE_IN_BLOCKS);
        self.next.saturating_sub(pending)
    }
}

/// Why a file is not staged in that is used through the kernel.
const DIRECT: &str = "programs use it through the kernel: it is mapped, in a directory of mode bypass, or another node \
                      has what the store lacks";

fn tiers(pool: &Pool) -> impl Iterator<Item = TierId> + use<> {
    pool.segment.header().tiers_in_use()
}

fn tier_name(pool: &Pool, tier: TierId) -> String {
    let name = &pool.segment.header().tier[tier].name;
    forebay_pool::segment::text(name).to_string_lossy().into_owned()
}

/// A connection to the pool's node manager, which stays as long as we have it.
fn connect(pool: &Pool) -> Result<Connection, String> {
    let place = pool.place().display();
    let gone = || {
        format!(
            "{place}: no node manager serves it; `forebay up` starts one, `forebay recover` ends what is left"
        )
    };
    let runtime = pool.runtime().ok_or_else(gone)?;
    let connection = Connection::to(&runtime.socket()).map_err(|_| gone())?;
    connection.send(Message::Hold).map_err(|_| gone())?;
    let (since, mut watch) = (Instant::now(), Watch::default());
    while since.elapsed() < ANSWER {
        watch.look(pool.manager())?;
        match connection.receive(Duration::from_millis(50)) {
            Ok(Some(Message::Held)) => return Ok(connection),
            Ok(_) if signals::early().is_some() => return Err("interrupted".to_owned()),
            Ok(_) => {}
            Err(_) => return Err(gone()),
        }
    }
    Err(format!("{}: its node manager does not answer; see `forebay status`", shown(pool.place())))
}
