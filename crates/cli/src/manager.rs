//! Starting node managers, and the commands that serve as one.

use crate::detach;
use crate::drain::{self, Ended};
use crate::instance::InstanceArguments;
use crate::watch::Watch;
use clap::Args;
use forebay_node::fsck;
use forebay_node::runtime::{Runtime, SERVED, append_private, read_private, write_private};
use forebay_node::status::Observer;
use forebay_node::{Config, Connection, Ending, Options, Rebuilt, WAITS, serve};
use forebay_pool::message::Message;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Options of `forebay node`.
#[derive(Args)]
pub struct NodeArguments {
    #[command(flatten)]
    instance: InstanceArguments,
    /// Record every movement in this file (CSV)
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The instance's own configuration, as `forebay run` writes it
    #[arg(long, hide = true)]
    resolved: Option<PathBuf>,
    /// The instance that it goes on with
    #[arg(long, hide = true, requires = "resolved")]
    instance_name: Option<String>,
    /// End when no run needs it any more
    #[arg(long, hide = true)]
    ephemeral: bool,
    /// Drain and end
    #[arg(long, hide = true)]
    drain_and_end: bool,
    /// Descriptor to report on once clients can connect
    #[arg(long, hide = true)]
    ready_fd: Option<i32>,
}

/// `forebay node`.
pub fn node(arguments: &NodeArguments) -> Result<ExitCode, String> {
    let mut report = arguments
        .ready_fd
        // SAFETY: the descriptor was opened by our parent for this.
        .map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
    forebay_node::log::begin();
    let result = serve_instance(arguments, &mut report);
    if let (Err(message), Some(mut report)) = (&result, report) {
        let _ = report.write_all(message.as_bytes());
    }
    result
}

fn serve_instance(
    arguments: &NodeArguments,
    report: &mut Option<File>,
) -> Result<ExitCode, String> {
    let (config, runtime) = match &arguments.resolved {
        Some(file) => {
            let text =
                read_private(file).map_err(|error| format!("{}: {error}", file.display()))?;
            let config = Config::parse(&text).map_err(|error| error.to_string())?;
            let runtime = match &arguments.instance_name {
                Some(name) => Runtime::of_instance(name)?,
                None => Runtime::of(&config)?,
            };
            (config, runtime)
        }
        None => arguments.instance.runtime()?,
    };
    runtime.prepare()?;
    spare_from_oom();
    let options = Options {
        ephemeral: arguments.ephemeral,
        drain_and_end: arguments.drain_and_end,
        trace: arguments.trace.clone(),
        report: report.as_ref().and_then(|report| report.try_clone().ok()),
    };
    let foreground = report.is_none();
    let described = config.describe();
    let ending = serve(config, &runtime, &options, |started| {
        let rebuilt = started.rebuilt.map(describe_rebuilt);
        for said in rebuilt.into_iter().chain(started.warnings) {
            eprintln!("forebay: {said}");
            if let Some(report) = report.as_mut() {
                writeln!(report, "{said}").map_err(|error| error.to_string())?;
            }
        }
        if foreground {
            let served = runtime.read_config().map_or(described, |config| config.describe());
            eprintln!("forebay: serving {served} ({})", runtime.socket().display());
        }
        if let Some(mut report) = report.take() {
            report.write_all(b"ready\n").map_err(|error| error.to_string())?;
        }
        Ok(())
    })?;
    match ending {
        Ending::Drained => Ok(ExitCode::SUCCESS),
        Ending::InUse => {
            eprintln!(
                "forebay: everything is on the backing store; programs use it without buffering, and {} \
                 stays for the next node manager",
                runtime.pool.display()
            );
            Ok(ExitCode::SUCCESS)
        }
        Ending::Kept { failing, bytes } => Err(format!(
            "{failing} files ({}) could not be written; {} keeps them for `forebay recover`",
            drain::bytes(bytes),
            runtime.pool.display()
        )),
    }
}

/// Where memory gets scarce, the manager is the last to be killed, if we may say so: what it has mapped is
/// the RAM tier, which its end would not free, and its work is what does.
fn spare_from_oom() {
    const SCORE: i32 = -500;
    let place = "/proc/self/oom_score_adj";
    let now = fs::read_to_string(place).ok().and_then(|now| now.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now > SCORE) {
        let _ = fs::write(place, SCORE.to_string());
    }
}

fn describe_rebuilt(rebuilt: Rebuilt) -> String {
    let Rebuilt { files, bytes, removed, kept, kept_in } = rebuilt;
    let mut said = format!(
        "recovered {files} files ({}) from the tiers of an earlier run",
        drain::bytes(bytes)
    );
    if removed > 0 {
        said.push_str(&format!("; data of {removed} files that were removed since is dropped"));
    }
    if kept > 0 {
        let folders: Vec<_> = kept_in.iter().map(|folder| folder.display().to_string()).collect();
        said.push_str(&format!(
            "; what fsync has acknowledged of {kept} files that are not on their store any more is kept in {}: remove \
             it if it is not wanted",
            folders.join(", ")
        ));
    }
    said
}

/// How a run's node manager came to be.
pub enum Joined {
    /// It was running.
    Running,
    /// It was started for this run.
    Started,
}

/// Waits for the end of a manager that no program uses: an earlier run's, which is about to end. One
/// that is joined records no movements.
pub fn await_leftover(runtime: &Runtime) {
    await_release_while(runtime, || {
        Observer::of(&runtime.pool).is_ok_and(|observer| observer.clients() == 0)
    });
}

/// Makes sure that a node manager serves the instance, and holds it. `runtime` is then that manager's.
pub fn join(
    config: &Config,
    runtime: &mut Runtime,
    trace: Option<&Path>,
) -> Result<(Connection, Joined), String> {
    let mut watch = Watch::default();
    let mut tries = 0;
    for _ in 0..50 {
        look_again(runtime)?;
        if let Some(connection) = hold(runtime, &mut watch)? {
            look_again(runtime)?;
            is_seen(runtime)?;
            return Ok((connection, Joined::Running));
        }
        runtime.prepare()?;
        // Another run may be starting it right now; the lock tells.
        match runtime.lock() {
            Ok(Some(lock)) => {
                drop(lock);
                match start(config, runtime, trace, &["--ephemeral"]) {
                    Err(StartError::Died(why)) if tries < START_TRIES => {
                        tries += 1;
                        eprintln!("forebay: {why}; starting another");
                        continue;
                    }
                    // Another run's was faster.
                    Ok(()) | Err(StartError::Served(_)) => {}
                    // It may be in another folder.
                    Err(error)
                        if !look_again(runtime)? && matches!(runtime.lock(), Ok(Some(_))) =>
                    {
                        // With its log, if that says more than we do.
                        if matches!(error, StartError::Refused(_)) {
                            runtime.remove_unless_used();
                        }
                        return Err(error.to_string());
                    }
                    _ => {}
                }
                look_again(runtime)?;
                if let Some(connection) = hold(runtime, &mut watch)? {
                    return Ok((connection, Joined::Started));
                }
            }
            Ok(None) => {
                watch.look(runtime.manager())?;
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(errno) => return Err(format!("{}: {errno}", runtime.folder.display())),
        }
    }
    Err(format!(
        "the node manager of {} holds its lock and does not answer; see {}",
        runtime.folder.display(),
        runtime.readable_log().display()
    ))
}

/// Takes the instance as its pool now tells it: a manager with another runtime folder may have come. Says
/// whether that is so.
fn look_again(runtime: &mut Runtime) -> Result<bool, String> {
    let now = runtime.again()?;
    let moved = now.folder != runtime.folder;
    if moved && runtime.folder.exists() {
        runtime.abandon_folder();
    }
    *runtime = now;
    Ok(moved)
}

/// Whether the pool of a manager that we hold can be seen: without it programs would run beside what it buffers.
fn is_seen(runtime: &Runtime) -> Result<(), String> {
    match runtime.pool.exists() {
        true => Ok(()),
        false => Err(format!(
            "{}: the node manager there has a pool that is not seen from here: in another container, with another /dev/shm; \
             run the command there, or with another FOREBAY_RUNTIME_DIR when it has ended",
            runtime.folder.display()
        )),
    }
}

/// Connects to the instance's manager and keeps it from ending. `None` when there is none, or
/// when it is ending already.
///
/// # Errors
/// That it is stopped.
fn hold(runtime: &Runtime, watch: &mut Watch) -> Result<Option<Connection>, String> {
    let Ok(connection) = Connection::to(&runtime.socket()) else { return Ok(None) };
    if connection.send(Message::Hold).is_err() {
        return Ok(None);
    }
    let since = Instant::now();
    loop {
        match connection.receive(Duration::from_millis(100)) {
            Ok(None) => watch.look(runtime.manager())?,
            answer => return Ok((answer == Ok(Some(Message::Held))).then_some(connection)),
        }
        if since.elapsed() > ANSWER && !watch.sees_a_halt() {
            return Ok(None);
        }
    }
}

/// How long a manager that is not stopped may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a manager is started again that dies before it can be reached.
const START_TRIES: u32 = 4;

/// Why a manager could not be started.
enum StartError {
    /// It says that another one serves the instance. That may be gone by now.
    Served(String),
    /// It says why it cannot serve.
    Refused(String),
    /// It was killed before it could be reached, or could not say why it ended.
    Died(String),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Served(text) | Self::Refused(text) | Self::Died(text)) = self;
        f.write_str(text)
    }
}

impl From<String> for StartError {
    fn from(text: String) -> Self {
        Self::Refused(text)
    }
}

/// Keeps the configuration in the instance's folder, which has none.
fn write_config(config: &Config, runtime: &Runtime) -> Result<(), String> {
    // Others may be reading it: it is replaced in one step.
    let resolved = runtime.config();
    let fresh = resolved.with_extension(std::process::id().to_string());
    write_private(&fresh, &config.canonical())
        .and_then(|()| fs::rename(&fresh, &resolved))
        .map_err(|error| format!("{}: {error}", resolved.display()))
}

/// A configuration for a node manager to begin with. What it finds may have another: so it is not kept in
/// the instance's folder under the name of the one that holds, and goes when the start has ended.
struct Proposed(PathBuf);

impl Proposed {
    fn write(config: &Config, runtime: &Runtime) -> Result<Proposed, String> {
        let path = runtime.config().with_extension(format!("proposed-{}", std::process::id()));
        write_private(&path, &config.canonical())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Proposed(path))
    }
}

impl Drop for Proposed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Starts a node manager that outlives us (see [`detach`]) and waits until clients can connect.
fn start(
    config: &Config,
    runtime: &Runtime,
    trace: Option<&Path>,
    flags: &[&str],
) -> Result<(), StartError> {
    let fail = |what: &str, error: &dyn std::fmt::Display| {
        format!("starting a node manager: {what}: {error}")
    };
    let proposed = Proposed::write(config, runtime)?;
    let log = append_private(&runtime.log()).map_err(|error| fail("log", &error))?;
    let mut its_log = log.try_clone().map_err(|error| fail("log", &error))?;
    let (mut report, their_end) = std::io::pipe().map_err(|error| fail("pipe", &error))?;
    let program = std::env::current_exe().map_err(|error| fail("forebay", &error))?;
    let mut command = Command::new(program);
    command.arg("node").arg("--resolved").arg(&proposed.0).args(flags);
    command.arg("--instance-name").arg(&runtime.instance);
    if let Some(trace) = trace {
        let trace = std::path::absolute(trace).map_err(|error| fail("trace", &error))?;
        command.arg("--trace").arg(trace);
    }
    command
        .arg("--ready-fd")
        .arg(detach::REPORT.to_string())
        .env_remove("LD_PRELOAD")
        .env("FOREBAY_DISABLE", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|error| fail("log", &error))?)
        .stderr(log)
        .current_dir("/");
    let manager =
        detach::spawn(command, their_end.into()).map_err(|error| fail("forebay", &error))?;
    let mut said = String::new();
    let mut byte = [0u8; 4096];
    let mut watch = Watch::default();
    while !said.ends_with("ready\n") {
        let mut fds = [PollFd::new(&report, PollFlags::IN)];
        let look = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if matches!(rustix::event::poll(&mut fds, Some(&look)), Ok(0) | Err(Errno::INTR)) {
            // Not by trying the lock, which would keep it from that.
            watch.look(runtime.manager())?;
            continue;
        }
        match report.read(&mut byte) {
            Ok(0) | Err(_) => break,
            Ok(count) => said.push_str(&String::from_utf8_lossy(&byte[..count])),
        }
        // At once: it takes seconds before it is known what comes of it.
        while said.starts_with(WAITS)
            && let Some((line, rest)) = said.split_once('\n')
        {
            eprintln!("forebay: {line}");
            said = rest.to_owned();
        }
    }
    if let Some(before) = said.strip_suffix("ready\n") {
        before.lines().for_each(|line| eprintln!("forebay: {line}"));
        manager.let_go();
        if let Ok(observer) = Observer::of(&runtime.again()?.pool) {
            detach::reap_if_ours(observer.manager());
        }
        return Ok(());
    }
    let status = manager.wait();
    if !said.is_empty() {
        let is_served = said.contains(SERVED);
        return Err(if is_served { StartError::Served(said) } else { StartError::Refused(said) });
    }
    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    let why = format!("the node manager died while it started ({how})");
    let _ = its_log.write_all(forebay_node::log::lines(&why).as_bytes());
    Err(StartError::Died(format!("{why}; see {}", runtime.readable_log().display())))
}

/// Makes sure that a node manager serves a pool whose own has died, and holds it: it goes on where that
/// one ended, and drains and ends when no run and no program uses the pool.
///
/// # Errors
/// Why there is none, and what to do.
pub fn revive(runtime: &Runtime) -> Result<Connection, String> {
    let Some(config) = recorded(runtime) else {
        let (config, pool) = (runtime.config(), runtime.pool.display());
        return Err(format!("{}: cannot be read; {pool} stays", config.display()));
    };
    let dirty = Observer::of(&runtime.pool).map_or(0, |observer| observer.dirty());
    eprintln!(
        "forebay: instance {} has no node manager, and {} are not yet on the store: another goes on",
        runtime.instance,
        drain::bytes(dirty)
    );
    let joined =
        join(&config, &mut runtime.clone(), None).map_err(|error| keeps_all(error, runtime))?;
    Ok(joined.0)
}

/// An error after which a pool is still there, and how its data can be had all the same.
fn keeps_all(error: String, runtime: &Runtime) -> String {
    let pool = runtime.pool.display();
    match runtime.pool.exists() {
        true => format!(
            "{error}\n{pool} keeps all data; `forebay salvage --to DIR --pool {pool}` saves it to \
             another place"
        ),
        false => error,
    }
}

/// Who answers for a pool.
enum Keeper {
    /// A node manager, and we are connected to it.
    Manager(Connection),
    /// Nobody.
    Nobody,
}

/// All instances of this user that have left anything, and who keeps them.
fn pools() -> Result<Vec<(Runtime, Keeper)>, String> {
    let all = Runtime::all()?.into_iter();
    Ok(all.filter_map(|runtime| keeper(&runtime).map(|keeper| (runtime, keeper))).collect())
}

/// Whether the manager's process is about to be gone, as after a kill: it takes connections until the last of
/// its threads is.
fn is_ending(runtime: &Runtime) -> bool {
    /// The kernel's flag of a task that ends, in the ninth field of /proc/PID/stat.
    const EXITING: u64 = 4;
    let Ok(observer) = Observer::of(&runtime.pool) else { return false };
    let stat = fs::read_to_string(format!("/proc/{}/stat", observer.manager())).unwrap_or_default();
    // The name, in parentheses, may have any character in it.
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let flags = behind_name.split_whitespace().nth(6).and_then(|flags| flags.parse::<u64>().ok());
    observer.manager() != 0
        && (!observer.is_served() || flags.is_some_and(|flags| flags & EXITING != 0))
}

/// Who keeps what an instance has left; `None` if it has left nothing.
fn keeper(runtime: &Runtime) -> Option<Keeper> {
    // A manager that was just killed keeps its lock until its last I/O has ended, and one that brings
    // back what was left answers only when it has. The latter may take long: who wants it drained waits.
    for _ in 0..100 {
        if !runtime.has_left() {
            return None;
        }
        if let Ok(connection) = Connection::to(&runtime.socket())
            && !is_ending(runtime)
        {
            return Some(Keeper::Manager(connection));
        }
        if let Ok(Some(_)) | Err(Errno::NOENT) = runtime.lock() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(Keeper::Nobody)
}

/// Waits a while for the end of a manager that was just killed: it keeps its lock, and may seem to
/// answer, until its last I/O has ended.
fn await_release(runtime: &Runtime) {
    await_release_while(runtime, || true);
}

/// Waits for up to 5 s, and only while `is_expected`, until no manager holds the instance's lock.
fn await_release_while(runtime: &Runtime, is_expected: impl Fn() -> bool) {
    for _ in 0..100 {
        if !matches!(runtime.lock(), Ok(None)) || !is_expected() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the manager that holds the instance's lock answers, however long it brings back what
/// was left. `None` when nobody holds it.
fn await_answer(runtime: &Runtime) -> Option<Result<Connection, String>> {
    let mut told = false;
    let mut watch = Watch::default();
    loop {
        if let Ok(connection) = Connection::to(&runtime.socket()) {
            return Some(Ok(connection));
        }
        if !matches!(runtime.lock(), Ok(None)) {
            return None;
        }
        if !told {
            let instance = &runtime.instance;
            eprintln!("forebay: waiting for a node manager that recovers instance {instance}");
            told = true;
        }
        if let Err(message) = watch.look(runtime.manager()) {
            return Some(Err(message));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How often an orphan is tried whose manager, started by another command, ends before it is drained.
const DRAIN_TRIES: usize = 10;

/// With which configuration what an instance has left goes on, if its folder is there: without it the user
/// says which.
fn recorded(runtime: &Runtime) -> Option<Config> {
    runtime.recorded().filter(|_| runtime.folder.exists())
}

/// Starts a manager for an orphan, unless another command was faster, and waits until it has drained it.
///
/// # Errors
/// What is left, and why.
fn drain_orphan(runtime: &Runtime) -> Result<(), String> {
    for _ in 0..DRAIN_TRIES {
        if let Some(result) = try_to_drain(runtime) {
            return result;
        }
    }
    Err(format!(
        "{}: node managers that other commands started end before everything is on the backing store; \
         see {}",
        runtime.folder.display(),
        runtime.readable_log().display()
    ))
}

/// Drains an orphan. `None` when another command's manager went about it, and has ended: whether it
/// has drained everything is to be seen.
fn try_to_drain(runtime: &Runtime) -> Option<Result<(), String>> {
    let config = recorded(runtime);
    if !runtime.has_left() {
        // A manager that was about to end has drained it meanwhile.
        return Some(Ok(()));
    }
    if let Some(answer) = await_answer(runtime) {
        let connection = match answer {
            Ok(connection) => connection,
            Err(message) => return Some(Err(message)),
        };
        return match drain::drain(&connection, runtime) {
            Ok(drain::Drained::All) => Some(Ok(())),
            Ok(drain::Drained::Kept(files)) => Some(Err(drain::describe(&files))),
            Ok(drain::Drained::Lost) => {
                await_release(runtime);
                None
            }
            Err(message) => Some(Err(message)),
        };
    }
    let Some(config) = config else {
        let (config, pool) = (runtime.config(), runtime.pool.display());
        let there = runtime.has_left();
        let message = || {
            format!(
                "{}: cannot be read, and nothing else says how {pool} is to be drained; it stays. Give its \
                 --config or --backing, or save its data with `forebay salvage --to DIR --pool {pool}`",
                config.display()
            )
        };
        return there.then(|| Err(message()));
    };
    // One that cannot be looked at is refused by the manager, which says why.
    let mut files = Vec::new();
    if fsck::is_sound(&runtime.pool)
        && let Ok(observer) = Observer::of(&runtime.pool)
    {
        let left = drain::bytes(observer.dirty());
        let stores = observer.stores().join(", ");
        eprintln!("forebay: draining {left} that an earlier run left for {stores}");
        files = observer.files();
    }
    if let Err(error) = start(&config, runtime, None, &["--drain-and-end"]) {
        if let StartError::Died(why) = &error {
            eprintln!("forebay: {why}; starting another");
            return None;
        }
        if matches!(error, StartError::Served(_)) || !runtime.folder.exists() {
            return None;
        }
        runtime.remove_unless_used();
        return Some(Err(keeps_all(error.to_string(), runtime)));
    }
    // It ends by itself; if it has already, it is seen what it has left.
    let connection = Connection::to(&runtime.socket()).ok();
    let result = drain::wait_for_end(connection.as_ref(), runtime);
    if matches!(result, Ok(Ended::Joined | Ended::Replaced)) {
        // With what was left, which may not be on the store yet.
        return None;
    }
    let left = match &result {
        Ok(_) => Vec::new(),
        Err(_) => Observer::of(&runtime.pool).map(|left| left.files()).unwrap_or_default(),
    };
    for file in files {
        if !left.iter().any(|left| left.path == file.path) {
            eprintln!("forebay: recovered {} ({})", file.path, drain::bytes(file.size));
        }
    }
    Some(result.map(drop))
}

/// Whether `ours` buffers one of these directories, or one within or above it.
fn overlap(ours: &Config, theirs: &[PathBuf]) -> bool {
    theirs.iter().any(|theirs| {
        ours.backing
            .iter()
            .any(|ours| ours.path.starts_with(theirs) || theirs.starts_with(&ours.path))
    })
}

fn backing_of(config: &Config) -> Vec<PathBuf> {
    config.backing.iter().map(|backing| backing.path.clone()).collect()
}

/// Makes the folders again of instances that have left something on the same file tiers for the same
/// directories, and lost theirs at a reboot: their data is older than all that will be written now.
fn adopt(config: &Config) -> Result<(), String> {
    let left = Runtime::left_beside(config)?;
    for (kept, theirs) in &left.elsewhere {
        if overlap(config, &backing_of(theirs)) {
            eprintln!(
                "forebay: {}: another machine buffers the same directories here; what it leaves is \
                 drained there",
                kept.display()
            );
        }
    }
    for (runtime, theirs) in left.ours {
        if overlap(config, &backing_of(&theirs)) {
            runtime.prepare()?;
            write_config(&theirs, &runtime)?;
        }
    }
    Ok(())
}

/// Before a run: drains what an earlier one with another configuration left for the same
/// directories. What was left with this configuration is taken over by its manager; what was left for
/// other directories is mentioned.
pub fn settle_orphans(config: &Config, runtime: &Runtime) -> Result<(), String> {
    adopt(config)?;
    for (orphan, keeper) in &pools()? {
        if orphan.instance == runtime.instance || matches!(keeper, Keeper::Manager(_)) {
            continue;
        }
        if orphan.backing().is_none_or(|theirs| overlap(config, &theirs)) {
            drain_orphan(orphan)?;
        } else {
            eprintln!(
                "forebay: instance {} holds what another run left; `forebay recover` drains it",
                orphan.instance
            );
        }
    }
    Ok(())
}

/// `forebay recover`.
pub fn recover(arguments: &InstanceArguments) -> Result<ExitCode, String> {
    if arguments.is_given() {
        // Only the pool, or after a reboot the tiers' files, may be left; the folder says whose they are.
        let (config, runtime) = arguments.runtime()?;
        if runtime.pool.exists() {
            runtime.prepare()?;
        } else if !runtime.config().exists()
            && let Some(left) = runtime.left_on_tiers(&config)
        {
            runtime.prepare()?;
            write_config(&left, &runtime)?;
        }
        // What must come to the store before anything of this one.
        settle_orphans(&config, &runtime)?;
    }
    let mut pools = pools()?;
    if arguments.is_given() {
        let (_, named) = arguments.runtime()?;
        pools.retain(|(runtime, _)| runtime.instance == named.instance);
    }
    // One store that is gone must not keep the others from being drained.
    let failures: Vec<String> = pools
        .iter()
        .filter_map(|(runtime, keeper)| match keeper {
            Keeper::Nobody => drain_orphan(runtime).err(),
            Keeper::Manager(connection) => match drain::drain(connection, runtime) {
                Ok(drain::Drained::All) => None,
                Ok(drain::Drained::Kept(files)) => Some(drain::describe(&files)),
                Ok(drain::Drained::Lost) => drain_orphan(runtime).err(),
                Err(message) => Some(message),
            },
        })
        .collect();
    match pools.len() {
        0 => println!("nothing to recover"),
        count if failures.is_empty() => {
            println!("recovered {count} pools: everything is on the backing store");
        }
        _ => return Err(failures.join("\n")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether an instance of `config` shares a directory with another's.
fn serves_the_same(runtime: &Runtime, config: &Config) -> bool {
    runtime.backing().is_some_and(|theirs| overlap(config, &theirs))
}

/// Says that no manager serves what was named, what does run, and what to do.
fn nothing_to_stop(config: &Config, named: &Runtime) -> Result<String, String> {
    let wanted: Vec<_> =
        config.backing.iter().map(|backing| backing.path.display().to_string()).collect();
    let mut said = format!(
        "no node manager serves {} with this configuration and these options (instance {})",
        wanted.join(", "),
        named.instance
    );
    if named.has_left() {
        said.push_str("; an earlier one has left data, which `forebay recover` drains");
    }
    let mut running = 0;
    for runtime in Runtime::all()? {
        let Ok(observer) = Observer::of(&runtime.pool) else { continue };
        if !observer.is_served() {
            continue;
        }
        running += 1;
        let (instance, pid) = (&runtime.instance, observer.manager());
        said.push_str(&format!(
            "\n  instance {instance} runs (node manager {pid}): {}",
            observer.stores().join(", ")
        ));
        if serves_the_same(&runtime, config) {
            said.push_str(", with another configuration or other options");
        }
    }
    said.push_str(match running {
        0 => "\nNone runs.",
        _ => "\n`forebay stop` without options ends all of them.",
    });
    Ok(said)
}

/// Says which programs go on without the manager that they had.
fn mention_processes(observer: &Observer, ended: &Ended) {
    /// Processes that are named.
    const NAMED: usize = 10;
    let left = observer.processes();
    if left.is_empty() {
        return;
    }
    let name = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{pid} ({})", name.trim_end())
    };
    let named: Vec<_> = left.iter().take(NAMED).map(name).collect();
    let more = if left.len() > NAMED { ", ..." } else { "" };
    eprintln!(
        "forebay: {} processes run on, without buffering: they read and write the backing store directly \
         from now on: {}{more}{}",
        left.len(),
        named.join(", "),
        match ended {
            Ended::InUse => "; the node manager ends with the last of them",
            _ => "",
        }
    );
}

/// `forebay stop`.
pub fn stop(arguments: &InstanceArguments) -> Result<ExitCode, String> {
    let instances = match arguments.is_given() {
        true => vec![arguments.runtime()?.1],
        false => Runtime::all()?,
    };
    let (mut found, mut stopped, mut failures) = (0, 0, Vec::new());
    for runtime in &instances {
        // One that takes over what was left answers only when it has.
        let Some(connection) = await_answer(runtime) else { continue };
        found += 1;
        // Its pool is gone when it has ended.
        let observer = drain::observe(runtime);
        let instance = &runtime.instance;
        match connection.and_then(|connection| drain::stop(&connection, runtime)) {
            Ok(ended @ (Ended::Gone | Ended::InUse)) => {
                stopped += 1;
                observer.iter().for_each(|observer| mention_processes(observer, &ended));
            }
            Ok(Ended::Joined) => failures.push(format!(
                "instance {instance}: another run has joined; its node manager goes on. `forebay status` shows it"
            )),
            Ok(Ended::Replaced) => {
                stopped += 1;
                failures.push(format!(
                    "instance {instance}: its node manager has ended, and another run has started one, which goes on. \
                     `forebay status` shows it"
                ));
            }
            Err(message) => failures.push(message),
        }
    }
    if found == 0 && arguments.is_given() {
        return Err(nothing_to_stop(&arguments.load()?, &instances[0])?);
    }
    println!("stopped {stopped} node managers");
    match failures.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(failures.join("\n")),
    }
}
