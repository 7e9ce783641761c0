//! `forebay replace` and `forebay restore`: files of a store that become their encoded form, and
//! back.

use crate::drain::Progress;
use crate::elsewhere;
use crate::flush::{flush_pool, report};
use crate::instance::InstanceArguments;
use crate::named::{Named, Pool};
use crate::text::bytes;
use crate::watch::{self, Watch};
use clap::{Args, ValueEnum};
use forebay_node::encoded::{Encoded, Failure, Refusal, encode};
use forebay_node::runtime::Runtime;
use forebay_node::{Connection, REFUSED};
use forebay_pool::clock::{self, Timer};
use forebay_pool::message::{Message, Outcome};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// How long a file is waited for that is about to be on the store, or at rest.
const AT_REST: Timer = Timer::seconds(10);
/// How long the node manager may have a file in hand before that is said.
const SAY: Timer = Timer::seconds(3);
/// How long it is waited for, and how much longer for each [`SLOW`] bytes of the file.
const ANSWER: Timer = Timer::seconds(600);
const MORE: Timer = Timer::seconds(1);
const SLOW: u64 = 4 << 20;
/// How often it is tried meanwhile.
const LOOK: Timer = Timer::ms(100);

/// The forms, as they are named on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Form {
    /// Zstandard
    Zstd,
    /// LZ4
    Lz4,
    /// Each part that is there several times once
    Dedup,
}

impl Form {
    fn format(self) -> forebay_node::encoded::Format {
        use forebay_node::encoded::Format;
        match self {
            Form::Zstd => Format::Zstd,
            Form::Lz4 => Format::Lz4,
            Form::Dedup => Format::Dedup,
        }
    }
}

/// Options of `forebay replace`.
#[derive(Args)]
pub struct ReplaceArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// What the files become
    #[arg(long, value_name = "FORM", value_enum, default_value = "zstd")]
    with: Form,
    /// Level of Zstandard, from 1 (fast) to 19 (small)
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: Option<i32>,
    /// The node manager runs it, by a rule
    #[arg(long, hide = true)]
    as_action: bool,
    /// Files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Options of `forebay restore`.
#[derive(Args)]
pub struct RestoreArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// Files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// The pool whose manager has a file, and the file.
struct Place {
    named: [Named; 1],
    pool: Pool,
}

impl Place {
    /// That of the file at `path`: in the pool of the instance that was named, if one was.
    fn of(path: &Path, instance: Option<&Runtime>) -> Result<Place, String> {
        let named = [Named::of(path)?];
        let (pools, unreadable) = Pool::all(&named)?;
        let served = |pool: &Pool| {
            pool.buffers(&named[0])
                && pool.runtime().is_some_and(|runtime| {
                    instance.is_none_or(|meant| runtime.instance == meant.instance)
                })
        };
        match (pools.into_iter().find(served), unreadable.into_iter().next()) {
            (Some(pool), _) => Ok(Place { named, pool }),
            (None, Some(error)) => Err(error),
            (None, None) => Err(format!(
                "{}: no node manager has its directory; `forebay up` starts one",
                path.display()
            )),
        }
    }

    /// A connection to its manager; one is started if it has died.
    fn connect(&self) -> Result<Connection, String> {
        let runtime = self.pool.runtime().ok_or("its instance is gone")?;
        match Connection::to(&runtime.socket()) {
            Ok(connection) => Ok(connection),
            Err(Errno::CONNREFUSED | Errno::NOENT) => self.pool.revive(),
            Err(errno) => Err(format!("{}: {errno}", runtime.socket().display())),
        }
    }

    /// Has the manager do what `message` says with the file. `None` if it died meanwhile.
    fn exchange(&self, message: Message) -> Result<Option<Outcome>, String> {
        let path = self.named[0].path();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| format!("{}: {errno}", path.display()))?;
        let connection = self.connect()?;
        if connection.send_with(message, file.as_fd()).is_err() {
            return Ok(None);
        }
        let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as u64);
        let most_ns = ANSWER.as_ns() + size / SLOW * MORE.as_ns();
        let (mut watch, began_ns, mut is_told) = (Watch::default(), clock::monotonic_ns(), false);
        loop {
            let manager = self.pool.runtime().and_then(Runtime::manager);
            let waited_ns = clock::monotonic_ns() - began_ns;
            if waited_ns > SAY.as_ns() && !is_told && !watch.sees_a_halt() {
                is_told = true;
                eprintln!("forebay: {}: waiting for {}", path.display(), named(manager));
            }
            // The watch has a limit of its own for one that is stopped.
            if waited_ns > most_ns && manager.and_then(watch::stopped).is_none() {
                return Err(format!(
                    "{}: {} has not answered for {} s; it may go on with the file later. `forebay \
                     status` names its log",
                    path.display(),
                    named(manager),
                    waited_ns / 1_000_000_000
                ));
            }
            match connection.receive(LOOK.as_duration()) {
                Ok(Some(Message::Exchanged { outcome })) => return Ok(Some(outcome)),
                // One that is alive may have a large file in hand.
                Ok(None) => {
                    watch.look(manager).map_err(|why| format!("{}: {why}", path.display()))?;
                }
                Ok(Some(_)) => return Err("the node manager is of another version".to_owned()),
                Err(_) => return Ok(None),
            }
        }
    }
}

/// The node manager with this process id, in words.
fn named(manager: Option<u32>) -> String {
    manager.map_or("the node manager".to_owned(), |pid| format!("node manager {pid}"))
}

/// An open of a FIFO would wait for its other end.
fn check_kind(path: &Path, whole: &Path) -> Result<(), String> {
    match whole.metadata() {
        Ok(found) if !found.is_file() => Err(format!("{}: it is no regular file", path.display())),
        _ => Ok(()),
    }
}

fn refused(path: &Path, why: u16) -> String {
    match Refusal::of(why) {
        Some(refusal) => format!("{}: {refusal}", path.display()),
        None => format!("{}: refused", path.display()),
    }
}

fn failed(path: &Path, errno: u16) -> String {
    let error = std::io::Error::from_raw_os_error(errno.into());
    format!("{}: {error}; the node manager's log says more", path.display())
}

/// `forebay replace`.
pub fn replace(arguments: &ReplaceArguments) -> Result<ExitCode, String> {
    let instance = meant(&arguments.instance)?;
    let mut errors = Vec::new();
    let mut has_failed = false;
    for file in &arguments.files {
        match replace_one(file, arguments, instance.as_ref()) {
            Ok(()) => {}
            Err(Left::Refused(why)) => errors.push(why),
            Err(Left::Failed(why)) => {
                has_failed = true;
                errors.push(why);
            }
        }
    }
    let code = report(&errors);
    // To the node manager a file that is to be left alone is no failure of the operation.
    let is_told = arguments.as_action && !errors.is_empty() && !has_failed;
    Ok(if is_told { ExitCode::from(REFUSED) } else { code })
}

/// Why a file was not replaced.
enum Left {
    /// It is none that is to be.
    Refused(String),
    /// Something went wrong.
    Failed(String),
}

impl From<String> for Left {
    fn from(why: String) -> Left {
        Left::Failed(why)
    }
}

/// The instance that the options name, if they do.
fn meant(instance: &InstanceArguments) -> Result<Option<Runtime>, String> {
    if !instance.is_given() {
        return Ok(None);
    }
    let runtime = instance.runtime_to_end()?.1;
    match runtime.has_pool() {
        true => Ok(Some(runtime)),
        false => Err("no node manager runs for that; `forebay up` starts one".to_owned()),
    }
}

fn replace_one(
    path: &Path,
    arguments: &ReplaceArguments,
    instance: Option<&Runtime>,
) -> Result<(), Left> {
    let place = Place::of(path, instance)?;
    let whole = place.named[0].path();
    check_kind(path, whole).map_err(Left::Refused)?;
    let store = place.pool.stores().find(|store| whole.starts_with(store));
    let store = store.ok_or_else(|| "its directory is gone".to_owned())?.to_owned();
    let began_ns = clock::monotonic_ns();
    loop {
        let mut errors = Vec::new();
        let mut progress = Progress::shown("flushing", false);
        let ahead = place.pool.ahead(&place.named);
        flush_pool(&place.pool, &ahead, &mut progress, &mut errors);
        progress.end();
        errors.extend(elsewhere::unknown(&place.named, std::slice::from_ref(&place.pool))?);
        if let Some(error) = errors.into_iter().next() {
            return Err(error.into());
        }
        let encoded = encode(whole, &store, arguments.with.format(), arguments.level);
        let refusal = match encoded {
            Ok(encoded) => match put_in_place(path, &place, encoded, arguments.with)? {
                None => return Ok(()),
                Some(refusal) => refusal,
            },
            Err(Failure::Refused(refusal)) => refusal,
            Err(failure) => return Err(format!("{}: {failure}", path.display()).into()),
        };
        let waited_ns = clock::monotonic_ns() - began_ns;
        if !refusal.may_pass() || waited_ns > AT_REST.as_ns() {
            return Err(Left::Refused(format!("{}: not replaced: {refusal}", path.display())));
        }
        clock::sleep_ns(LOOK.as_ns());
    }
}

/// Has the manager put in place what was encoded. `None` if that is done, else why it is not.
fn put_in_place(
    path: &Path,
    place: &Place,
    encoded: Encoded,
    form: Form,
) -> Result<Option<Refusal>, String> {
    let (original, length) = encoded.bytes;
    match place.exchange(Message::Replace { number: encoded.number() })? {
        Some(Outcome::Done) => {
            encoded.keep();
            let ratio = original as f64 / length.max(1) as f64;
            let name = form.format();
            println!(
                "{}: {name}, {} are {} ({ratio:.1}:1)",
                path.display(),
                bytes(original),
                bytes(length)
            );
            Ok(None)
        }
        Some(Outcome::Refused(why)) => match Refusal::of(why) {
            Some(refusal) => Ok(Some(refusal)),
            None => Err(refused(path, why)),
        },
        Some(Outcome::Error(errno)) => {
            // The file may need it.
            encoded.keep();
            Err(failed(path, errno))
        }
        Some(Outcome::Plain) | None => {
            encoded.keep();
            Err(format!(
                "{}: the node manager ended meanwhile; the next one goes on, or leaves the file as it \
                 was",
                path.display()
            ))
        }
    }
}

/// `forebay restore`.
pub fn restore(arguments: &RestoreArguments) -> Result<ExitCode, String> {
    let instance = meant(&arguments.instance)?;
    let restored = arguments.files.iter().map(|path| {
        let place = Place::of(path, instance.as_ref())?;
        check_kind(path, place.named[0].path())?;
        match place.exchange(Message::Restore { empties: false })? {
            Some(Outcome::Done) => println!("{}: has its original bytes again", path.display()),
            Some(Outcome::Plain) => println!("{}: is not encoded", path.display()),
            Some(Outcome::Error(errno)) => return Err(failed(path, errno)),
            Some(Outcome::Refused(why)) => return Err(refused(path, why)),
            None => {
                return Err(format!("{}: the node manager ended meanwhile", path.display()));
            }
        }
        Ok(())
    });
    let errors: Vec<String> = restored.filter_map(Result::err).collect();
    Ok(report(&errors))
}
