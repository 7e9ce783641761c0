//! Faults on purpose, for testers: the file that `FOREBAY_FAULTS` names says what goes wrong with
//! the manager's transfers to stores and tiers, and on the links to other nodes. Without
//! the variable nothing of this exists.

use forebay_cluster::{LinkFaults, parse_link_faults};
use forebay_device::{Batch, Errno, StoreFile, Transfer};
use forebay_tiers::{Fault, FaultScript, Faulty, Operation, parse_script};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// What scripts call the backing stores, all of them.
pub(crate) const STORE: &str = "store";

/// What scripts call the links to other nodes, all of them.
const LINKS: &str = "links";

/// What scripts call the node's part in its group.
const GROUP: &str = "group";

/// A script that is read again whenever its file has changed.
pub(crate) struct Faults {
    path: PathBuf,
    devices: Vec<(String, FaultScript)>,
    links: LinkFaults,
    /// The version of another build's messages, as which the node begins in its group.
    protocol: Mutex<Option<String>>,
    seen: Mutex<Seen>,
    /// Where each hit is noted, if anywhere; locked as long as hits are taken and not yet noted.
    log: Mutex<Option<PathBuf>>,
}

/// By what a change of the file is noticed: inode, size, modification time.
type Seen = Option<(u64, u64, i64, i64)>;

impl Faults {
    /// The script that the environment names, for the stores and these tiers.
    ///
    /// # Errors
    /// A message that names the file and the line that is wrong.
    pub fn of_environment<'a>(
        tiers: impl Iterator<Item = &'a str>,
    ) -> Result<Option<Arc<Faults>>, String> {
        let Some(path) = std::env::var_os("FOREBAY_FAULTS").filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let devices = std::iter::once(STORE).chain(tiers);
        let devices = devices.map(|name| (name.to_owned(), FaultScript::new())).collect();
        let log = std::env::var_os("FOREBAY_FAULTS_LOG").filter(|path| !path.is_empty());
        let log = Mutex::new(log.map(PathBuf::from));
        let (seen, links, protocol) = (Mutex::new(None), LinkFaults::new(), Mutex::default());
        let faults = Faults { path: path.into(), devices, links, protocol, seen, log };
        faults.read()?;
        info!("faults are injected as {} says", faults.path.display());
        Ok(Some(Arc::new(faults)))
    }

    /// What goes wrong on links, for the group.
    pub fn links(&self) -> LinkFaults {
        self.links.clone()
    }

    /// As which protocol's node this one is to begin in its group.
    pub fn protocol(&self) -> Option<String> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the script if it has changed. One that cannot be understood changes nothing.
    fn read(&self) -> Result<(), String> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let found = std::fs::metadata(&self.path).ok();
        let now = found.map(|f| (f.ino(), f.size(), f.mtime(), f.mtime_nsec()));
        if *seen == now {
            return Ok(());
        }
        *seen = now;
        // A file that is not there is a script without rules.
        let text = match now {
            None => String::new(),
            Some(_) => std::fs::read_to_string(&self.path)
                .map_err(|error| format!("FOREBAY_FAULTS: {}: {error}", self.path.display()))?,
        };
        let wrong = |line: usize, what: &str| {
            format!("FOREBAY_FAULTS: {}:{line}: {what}", self.path.display())
        };
        // Lines of links, and of the group, have words of their own. All lines keep their numbers.
        let of = |name: &str, line: &str| {
            let (device, rest) = line.trim_start().split_once(char::is_whitespace)?;
            (device == name).then(|| rest.trim().to_owned())
        };
        let lines = |of: &dyn Fn(&str) -> String| text.lines().map(of).collect::<Vec<_>>();
        let links = lines(&|line| of(LINKS, line).unwrap_or_default()).join("\n");
        let links = parse_link_faults(&links).map_err(|error| wrong(error.line, &error.what))?;
        let mut protocol = None;
        for (line, words) in (1..).zip(text.lines().map(|line| of(GROUP, line))) {
            let Some(words) = words else { continue };
            let version = words.strip_prefix("protocol ").map(str::trim);
            let version = version.filter(|version| !version.is_empty());
            protocol =
                Some(version.ok_or_else(|| wrong(line, "group protocol VERSION"))?.to_owned());
        }
        let devices = lines(&|line| match of(LINKS, line).or_else(|| of(GROUP, line)) {
            Some(_) => String::new(),
            None => line.to_owned(),
        });
        let rules = parse_script(&devices.join("\n"));
        let rules = rules.map_err(|error| wrong(error.line, &error.what))?;
        let names: Vec<_> = self.devices.iter().map(|(name, _)| &name[..]).chain([LINKS]).collect();
        if let Some((line, name, _)) = rules.iter().find(|(_, name, _)| !names.contains(&&name[..]))
        {
            let known = names.join(", ");
            return Err(wrong(*line, &format!("unknown device {name}; one of {known}")));
        }
        self.links.replace(links);
        *self.protocol.lock().unwrap_or_else(PoisonError::into_inner) = protocol;
        for (device, script) in &self.devices {
            let of_device = rules.iter().filter(|(_, name, _)| name == device);
            script.replace(of_device.map(|(.., rule)| rule.clone()).collect());
        }
        Ok(())
    }

    /// Notes what has hit, before a program can see what came of it: time in nanoseconds since
    /// 1970, device, operation, fault, errno or 0.
    fn note_hits(&self, device: &str, script: &FaultScript) {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = log.as_ref() else { return };
        let hits = script.take_hits();
        if hits.is_empty() {
            return;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let line = |(operation, fault): &(Operation, Fault)| {
            let operation = match operation {
                Operation::Read => "read",
                Operation::Write => "write",
                Operation::Sync => "sync",
            };
            let (fault, errno) = match fault {
                Fault::Fail(errno) => ("fail", errno.raw_os_error()),
                Fault::Tear(errno) => ("tear", errno.raw_os_error()),
                Fault::Short => ("short", 0),
                Fault::Lose => ("lose", 0),
                Fault::Delay(_) => ("delay", 0),
            };
            format!("{time} {device} {operation} {fault} {errno}\n")
        };
        let text: String = hits.iter().map(line).collect();
        let opened = File::options().append(true).create(true).open(path);
        if let Err(error) = opened.and_then(|mut file| file.write_all(text.as_bytes())) {
            eprintln!("FOREBAY_FAULTS_LOG: {}: {error}", path.display());
        }
    }

    fn refresh(&self) {
        if let Err(message) = self.read() {
            eprintln!("{message}; the faults stay as they were");
        }
    }
}

/// Puts the script's faults for `device` around a client.
pub(crate) fn around(
    client: Box<dyn Batch>,
    faults: Option<&Arc<Faults>>,
    device: &str,
) -> Box<dyn Batch> {
    let script = faults.and_then(|faults| {
        let found = faults.devices.iter().find(|(name, _)| name == device);
        found.map(|(device, script)| (Arc::clone(faults), device.clone(), script.clone()))
    });
    match script {
        None => client,
        Some((faults, device, script)) => {
            let client = Faulty::new(client, script.clone());
            Box::new(Scripted { faults, device, script, client })
        }
    }
}

/// A client that looks for a new script before everything it does.
struct Scripted {
    faults: Arc<Faults>,
    device: String,
    script: FaultScript,
    client: Faulty<Box<dyn Batch>>,
}

impl Batch for Scripted {
    fn name(&self) -> &'static str {
        self.client.name()
    }

    fn run(&mut self, transfers: &mut [Transfer]) {
        self.faults.refresh();
        self.client.run(transfers);
        self.faults.note_hits(&self.device, &self.script);
    }

    fn sync(&mut self, file: StoreFile) -> Result<(), Errno> {
        self.faults.refresh();
        let result = self.client.sync(file);
        self.faults.note_hits(&self.device, &self.script);
        result
    }
}
