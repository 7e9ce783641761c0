//! One life of a node in the group's folder: its card, its looks, and what it makes there.

use super::secret::fill;
use super::{GroupFolder, Names, TEMPORARY};
use crate::clock::now_ms;
use crate::error::GroupError;
use forebay_membership::{Card, Found, GroupFile, Incarnation, Member, NodeId, View};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How many of the newest views are kept, so that for T/2 after a look the view that follows is
/// there, if it was made: each is made T/20 after the one before was seen at the earliest, 32 take
/// 1.6 T, and 0.8 T of a clock that is half as fast.
///
/// A number that is free again may be taken once more, by a proposal that was under way all the
/// time. So who has not looked for T/2 lists the folder, and takes the highest.
const VIEWS_KEPT: u32 = 32;
/// How many times a node that starts as another one does takes the next incarnation.
const TRIES: usize = 16;
/// Into how many naps the time is parted in which a card of another host may show that it lives.
const NAPS: u32 = 10;

/// A life that has its card in the folder.
pub(crate) struct Life {
    folder: GroupFolder,
    me: Member,
    host: String,
    /// How long a look is valid.
    valid: Duration,
    /// How often it has looked, as the name of its card says.
    looks: u64,
    /// The newest view that it has seen.
    newest: Option<View>,
    /// When the last good look began, in ms.
    looked_ms: Option<u64>,
}

/// What became of a view that was to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proposed {
    Won,
    /// There is one of this number, which the next look finds.
    Lost,
}

impl GroupFolder {
    /// Begins a life of a node: with the incarnation above those of all before. A card of this
    /// node that another host has is watched for as long as a look is valid: if it looks
    /// meanwhile, it lives. One that has others look for it, in a large group, is not noticed; the
    /// later life takes its number.
    ///
    /// # Errors
    /// The number is another host's ([`GroupError::Taken`]), or a call fails.
    pub fn begin(
        self,
        node: NodeId,
        host: &str,
        (address, terms): (&str, &str),
        valid: Duration,
    ) -> Result<Life, GroupError> {
        self.refuse_taken(node, host, valid)?;
        for _ in 0..TRIES {
            let me = Member { node, incarnation: self.next_incarnation(node)? };
            let name = GroupFile::Member(me, 0).to_string();
            let card = Card::new(me, address, host).and_then(|card| card.with_terms(terms));
            let card = card.map_err(|error| self.text(&name, error))?;
            let beside = self.write_beside(me, card.to_text().as_bytes())?;
            // Not by a rename: of two starts at once one has this life.
            let is_linked = match self.link(&beside, &name) {
                // A start that has a later life already has removed the file beside.
                Err(GroupError::File { errno: Errno::NOENT, .. }) => false,
                linked => linked?,
            };
            if is_linked {
                let names = self.list()?;
                let cards = names.cards();
                let is_first = |member| member < me || cards.get(&member) == Some(&0);
                if names.lives().filter(|member| member.node == node).all(is_first) {
                    self.remove_earlier(me, names)?;
                    let (host, newest, looked_ms) = (host.to_owned(), None, None);
                    let folder = self;
                    return Ok(Life { folder, me, host, valid, looks: 0, newest, looked_ms });
                }
                self.remove(&name)?;
            }
        }
        Err(self.refused("", format!("node {} is started again and again", node.0)))
    }

    /// Above all that the folder's names and its newest view have of a node.
    fn next_incarnation(&self, node: NodeId) -> Result<Incarnation, GroupError> {
        let names = self.list()?;
        let newest = match names.newest() {
            0 => None,
            number => self.view(number)?,
        };
        let seat = newest.and_then(|view| view.seat_of(node));
        let lives = names.lives().filter(|member| member.node == node);
        let before = lives.chain(seat.map(|seat| seat.member)).max();
        let before = before.map_or(0, |member| member.incarnation.0);
        let all_had = || self.refused("", format!("node {} had all its lives", node.0));
        before.checked_add(1).map(Incarnation).ok_or_else(all_had)
    }

    /// Refuses a number under which another host lives.
    fn refuse_taken(&self, node: NodeId, host: &str, watch: Duration) -> Result<(), GroupError> {
        let before = self.cards_of_others(node, host)?;
        let begin = Instant::now();
        while !before.is_empty() && begin.elapsed() < watch {
            std::thread::sleep(watch / NAPS);
            let cards = self.list()?.cards();
            let looked = |(member, looks, _): &&(Member, u64, String)| {
                cards.get(member).is_some_and(|now| now > looks)
            };
            if let Some((.., other)) = before.iter().find(looked) {
                let (host, folder) = (host.to_owned(), self.path.clone());
                return Err(GroupError::Taken { node, host, other: other.clone(), folder });
            }
        }
        Ok(())
    }

    /// Cards of this node that other hosts have: lives, looks, hosts.
    fn cards_of_others(
        &self,
        node: NodeId,
        host: &str,
    ) -> Result<Vec<(Member, u64, String)>, GroupError> {
        'again: for _ in 0..TRIES {
            let mut found = Vec::new();
            let cards = self.list()?.cards();
            for (member, looks) in cards.into_iter().filter(|(member, _)| member.node == node) {
                // One that looks meanwhile is not to be missed.
                let Some(card) = self.card(member, looks)? else { continue 'again };
                if card.host() != host {
                    found.push((member, looks, card.host().to_owned()));
                }
            }
            return Ok(found);
        }
        Err(self.refused("", format!("a card of node {} cannot be read: it changes", node.0)))
    }

    /// Removes what earlier lives of a node have left. One that still runs cannot look any more,
    /// and what it is writing has no name to be linked by.
    fn remove_earlier(&self, me: Member, mut names: Names) -> Result<(), GroupError> {
        let is_earlier = |member: &Member| member.node == me.node && *member < me;
        for name in &names.temporary {
            if writer(name).is_some_and(|writer| is_earlier(&writer)) {
                self.remove(name)?;
            }
        }
        for file in &names.files {
            if let GroupFile::Left(member) = file
                && is_earlier(member)
            {
                self.remove(&file.to_string())?;
            }
        }
        for _ in 0..TRIES {
            let mut earlier = names.cards();
            earlier.retain(|member, _| is_earlier(member));
            if earlier.is_empty() {
                return Ok(());
            }
            for (member, looks) in earlier {
                self.remove(&GroupFile::Member(member, looks).to_string())?;
            }
            // One that looks meanwhile has renamed its card.
            names = self.list()?;
        }
        let why = format!("an earlier life of node {} looks without a pause: end it", me.node.0);
        Err(self.refused("", why))
    }

    /// Writes a file beside, of this life; returns its name.
    fn write_beside(&self, writer: Member, content: &[u8]) -> Result<String, GroupError> {
        let mut mark = [0; 8];
        fill(&mut mark)?;
        let mark = u64::from_le_bytes(mark);
        let beside = format!("{TEMPORARY}{}.{}.{mark:016x}", writer.node.0, writer.incarnation.0);
        self.write(&beside, content)?;
        Ok(beside)
    }
}

impl Life {
    /// Whose it is.
    pub fn me(&self) -> Member {
        self.me
    }

    /// Counts a look, and finds the newest view; with `lists` also who pleads and who looks,
    /// otherwise only if it has to list the folder anyway.
    ///
    /// The count comes first: it changes the folder, so that an NFS client does not take the rest
    /// from its cache.
    ///
    /// # Errors
    /// This life has no card any more, there is an older view than was seen, or a call fails.
    pub fn look(&mut self, lists: bool) -> Result<Found, GroupError> {
        let began_ms = now_ms();
        self.count()?;
        let valid_ms = self.valid.as_millis() as u64;
        let is_recent = self.looked_ms.is_some_and(|looked_ms| began_ms < looked_ms + valid_ms);
        let climbs = is_recent && self.newest.is_some();
        if climbs {
            self.climb()?;
        }
        let names = if climbs && !lists { Names::default() } else { self.find_newest()? };
        self.looked_ms = Some(began_ms);
        Ok(Found::of_folder(self.newest.clone(), names.files))
    }

    /// Renames the card to the next number.
    fn count(&mut self) -> Result<(), GroupError> {
        let rename = |looks: u64| {
            let (from, to) = (GroupFile::Member(self.me, looks), looks + 1);
            let to = GroupFile::Member(self.me, to).to_string();
            let at = &self.folder.at;
            match rustix::fs::renameat(at, from.to_string(), at, to) {
                Err(errno) => Err((errno, from.to_string())),
                Ok(()) => Ok(looks + 1),
            }
        };
        let counted = match rename(self.looks) {
            // An earlier rename may have taken effect, and its answer been lost.
            Err((Errno::NOENT, name)) => {
                let cards = self.folder.list()?.cards();
                match cards.get(&self.me) {
                    Some(looks) => rename(*looks),
                    None => return Err(self.gone(&name, &cards)),
                }
            }
            counted => counted,
        };
        let failed = |(errno, name): (_, String)| self.folder.failed(&name, "renaming", errno);
        self.looks = counted.map_err(failed)?;
        Ok(())
    }

    /// Why this life has no card.
    fn gone(&self, name: &str, cards: &BTreeMap<Member, u64>) -> GroupError {
        let is_later =
            |(member, _): &(&Member, &u64)| member.node == self.me.node && **member > self.me;
        let Some((later, looks)) = cards.iter().find(is_later) else {
            let why = "is gone: was the folder emptied? Start this node's manager again";
            return self.folder.refused(name, why);
        };
        match self.folder.card(*later, *looks) {
            Ok(Some(card)) if card.host() != self.host => GroupError::Taken {
                node: self.me.node,
                host: self.host.clone(),
                other: card.host().to_owned(),
                folder: self.folder.path.clone(),
            },
            _ => {
                let life = later.incarnation.0;
                let why = format!("is gone: life {life} of this node has begun; end this one");
                self.folder.refused(name, why)
            }
        }
    }

    /// Takes the views after the newest that is known, as far as there are any.
    fn climb(&mut self) -> Result<(), GroupError> {
        while let Some(known) = &self.newest
            && let Some(next) = known.number.checked_add(1)
            && let Some(view) = self.folder.view(next)?
        {
            self.newest = Some(view);
        }
        Ok(())
    }

    /// Finds the newest view by a listing; returns what was listed after it was read.
    fn find_newest(&mut self) -> Result<Names, GroupError> {
        loop {
            let names = self.folder.list()?;
            let (listed, known) =
                (names.newest(), self.newest.as_ref().map_or(0, |view| view.number));
            if listed < known {
                let name = GroupFile::View(known).to_string();
                let why = format!(
                    "was there, and the newest is number {listed} now: was the folder replaced? \
                     Start the group's managers again"
                );
                return Err(self.folder.refused(&name, why));
            }
            if listed == known {
                return Ok(names);
            }
            // One that is removed meanwhile is followed by newer ones.
            if let Some(view) = self.folder.view(listed)? {
                self.newest = Some(view);
            }
        }
    }

    /// Makes a view, if there is none of its number.
    ///
    /// # Errors
    /// A call fails; the view may have been made.
    pub fn propose(&mut self, view: &View) -> Result<Proposed, GroupError> {
        let name = GroupFile::View(view.number).to_string();
        let beside = self.folder.write_beside(self.me, view.to_text().as_bytes())?;
        if !self.folder.link(&beside, &name)? {
            return Ok(Proposed::Lost);
        }
        self.remove_old(view.number)?;
        Ok(Proposed::Won)
    }

    /// Removes views and pleas that none needs any more.
    fn remove_old(&self, newest: u32) -> Result<(), GroupError> {
        let mut old = self.folder.list()?.files;
        old.retain(|file| match file {
            GroupFile::View(number) => *number < newest.saturating_sub(VIEWS_KEPT - 1),
            GroupFile::Plea(number, _) => *number < newest,
            GroupFile::Member(..) | GroupFile::Left(_) => false,
        });
        old.sort_unstable();
        old.into_iter().try_for_each(|file| self.folder.remove(&file.to_string()))
    }

    /// Notes that this node lives, in the view of this number.
    ///
    /// # Errors
    /// A call fails.
    pub fn plead(&mut self, number: u32) -> Result<(), GroupError> {
        let name = GroupFile::Plea(number, self.me.node).to_string();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.folder.at, &name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(self.folder.failed(&name, "making", errno)),
        }
    }

    /// Takes the card of a life away that has not begun: its folder was removed meanwhile.
    pub fn abandon(self) {
        let _ = self.folder.remove(&GroupFile::Member(self.me, self.looks).to_string());
    }

    /// Ends this life: others need not look for it any more. The last of a group removes the
    /// folder.
    ///
    /// # Errors
    /// A call fails: then the life has ended as one that was killed.
    pub fn leave(self) -> Result<(), GroupError> {
        let (at, left) = (&self.folder.at, GroupFile::Left(self.me).to_string());
        let card = GroupFile::Member(self.me, self.looks).to_string();
        match rustix::fs::renameat(at, &card, at, &left) {
            Ok(()) => self.folder.remove_if_done(),
            // A later life of this node has removed it.
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.folder.failed(&card, "renaming", errno)),
        }
    }

    /// The cards of these nodes that say more than is known, and of all after the last of `hosts`;
    /// whether each life has ended by itself; and the first error: of one that cannot be read the
    /// others are found. No more than so many.
    pub fn find(
        &self,
        wanted: &BTreeMap<NodeId, Known>,
        hosts: usize,
        most: usize,
    ) -> (Vec<(Card, bool)>, Option<GroupError>) {
        let (mut found, mut wrong) = (Vec::new(), None);
        let names = match self.folder.list() {
            Ok(names) => names,
            Err(error) => return (found, Some(error)),
        };
        let cards = names.cards().into_iter();
        let cards = cards.map(|(member, looks)| (member, GroupFile::Member(member, looks)));
        let left = names.files.iter().filter_map(|file| match file {
            GroupFile::Left(member) => Some((*member, *file)),
            _ => None,
        });
        // The last of a node is its newest life.
        let lives: BTreeMap<_, _> = left.chain(cards).collect();
        let newest: BTreeMap<_, _> =
            lives.into_iter().map(|(member, file)| (member.node, (member, file))).collect();
        for (node, (member, file)) in newest {
            let is_listed = usize::from(node.0) < hosts;
            let is_left = matches!(file, GroupFile::Left(_));
            let known = wanted.get(&node).map_or(is_listed, |known| {
                Some(member.incarnation) <= if is_left { known.left } else { known.card }
            });
            if !known && found.len() < most {
                match self.folder.card_in(member, file) {
                    Ok(card) => found.extend(card.map(|card| (card, is_left))),
                    Err(error) => wrong = wrong.or(Some(error)),
                }
            }
        }
        (found, wrong)
    }
}

/// What is known of a node's cards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The newest life whose card was read.
    pub card: Option<Incarnation>,
    /// The newest life that is known to have ended by itself.
    pub left: Option<Incarnation>,
}

/// Whose file beside it is.
fn writer(name: &str) -> Option<Member> {
    let mut parts = name.strip_prefix(TEMPORARY)?.split('.').map(str::parse::<u32>);
    let (node, incarnation) = (parts.next()?.ok()?, parts.next()?.ok()?);
    Some(Member::new(node.try_into().ok()?, incarnation))
}
