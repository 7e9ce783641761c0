//! The group of nodes that a configuration, a command or a batch system names: its hosts, this
//! node's number among them, and the group's folder on the store.

use super::mpi::{self, MpiJob};
use super::reader::{self, Value};
use super::types::{Config, ConfigError, Result, fnv1a, quoted, quoted_path};
use super::units::Size;
use super::{Errors, read_up_to};
use forebay_cluster::{Meeting, Transport};
use forebay_membership::{Announced, AnnouncedHosts, HostList, HostsError, NodeId};
use forebay_pool::clock::Timer;
use std::fmt::{Display, Write as _};
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};

pub(super) const GROUP_KEYS: &[&str] =
    &["hosts", "folder", "bind", "consistency", "fabric", "trusted_network"];
/// `node` and `job` are not for people: they say what was found out of them.
pub(super) const CANONICAL_GROUP_KEYS: &[&str] =
    &["hosts", "folder", "bind", "consistency", "fabric", "trusted_network", "node", "job"];

/// Longest file of hosts: 65,535 names of 255 bytes with what may stand behind them.
const HOSTS_FILE_MAX: u64 = 32 << 20;
/// What names of default folders begin with; a hidden name.
const FOLDER_START: &str = ".forebay-group-";
/// How long processes of a job of MPI wait for each other: they are all started at once.
const MEETING: Timer = Timer::seconds(10);

/// What is said of the group of nodes. Equal on two runs that want the same group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The hosts that it may have, if any are named, and this one is among them.
    pub hosts: Option<Hosts>,
    /// Why this host is none of those that a file names. It matters to what begins a group; other
    /// commands may be given on other hosts.
    pub absent: Option<String>,
    /// Its folder, if one is named; see [`Config::group_folder`].
    pub folder: Option<PathBuf>,
    /// The address of this host that others reach; all that it has if none is named.
    pub bind: Option<IpAddr>,
    /// What nodes see of each other's files.
    pub consistency: Consistency,
    /// By what nodes have links to each other.
    pub fabric: Transport,
}

/// What the nodes of a group see of each other's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// As [`Consistency::Strict`]; on a node that is not in its group for long, which is said, as
    /// [`Consistency::Open`].
    #[default]
    Auto,
    /// What the store has when they open a file.
    Open,
    /// What was written before, on whichever node.
    Strict,
}

impl Consistency {
    const ALL: [Self; 3] = [Self::Auto, Self::Open, Self::Strict];

    /// The name by which people give it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Open => "open",
            Self::Strict => "strict",
        }
    }
}

/// The hosts of a group, and which of them this one is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// All of them, the same list on each.
    pub list: HostList,
    /// This one's number.
    pub node: NodeId,
    /// The batch system's name of the job, where that has named the hosts.
    pub job: Option<String>,
}

impl Hosts {
    /// Of a list in which this host is found by its name, or by its address where the list has
    /// addresses. A list of `localhost` alone is this host.
    fn of(list: HostList) -> std::result::Result<Self, HostsError> {
        let name = hostname();
        let has = |address| UdpSocket::bind((address, 0)).is_ok();
        let node = match list.names() == ["localhost"] {
            true => NodeId(0),
            false => list.position_here(&name, has)?,
        };
        Ok(Self { list, node, job: None })
    }

    /// The name of this host in the list.
    pub fn own_name(&self) -> &str {
        self.list.name_of(self.node).unwrap_or_default()
    }

    /// Whether there is no other.
    pub fn is_alone(&self) -> bool {
        self.list.names().len() < 2
    }
}

/// The name of the folder in which the processes of a job meet, and their group is then.
fn folder_of_job(name: &str) -> String {
    format!("{FOLDER_START}{:016x}", fnv1a(name.as_bytes()))
}

/// What this host calls itself.
fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The hosts that a text names: those of a file where there is one of that name, which begins at
/// `folder` if it is relative; else an expression. The inner error is that this host is none.
fn read_hosts(text: &str, folder: &Path, place: &str) -> Result<Result<Hosts>> {
    let error = |problem: &dyn Display| ConfigError::new(place, problem);
    let (list, is_file) = read_list(text, folder, place)?;
    Ok(Hosts::of(list).map_err(|problem| {
        let may_be_file = !is_file && !text.contains([',', '[']);
        let no_file = if may_be_file { ", or give a file that exists" } else { "" };
        error(&format!("{problem}{no_file}"))
    }))
}

/// The same without looking for this host; whether they are those of a file.
fn read_list(text: &str, folder: &Path, place: &str) -> Result<(HostList, bool)> {
    let error = |problem: &dyn Display| ConfigError::new(place, problem);
    let file = folder.join(text);
    let is_file = text.contains('/') || file.is_file();
    let list = match is_file {
        true => list_of_file(&file).map_err(|problem| error(&problem))?,
        false => HostList::of_expression(text).map_err(|problem| {
            error(&format!("{problem}; give hosts such as \"n[1-4]\", or a file"))
        })?,
    };
    Ok((list, is_file))
}

fn list_of_file(file: &Path) -> std::result::Result<HostList, String> {
    let name = file.display();
    let content = fs::File::open(file).and_then(|file| read_up_to(HOSTS_FILE_MAX, file));
    let content = content.map_err(|error| format!("{name}: {error}; give a file of hosts"))?;
    let large = || format!("{name}: larger than {}, no list of hosts is", Size(HOSTS_FILE_MAX));
    let content = String::from_utf8(content.ok_or_else(large)?);
    let content = content.map_err(|_| format!("{name}: not UTF-8; give a file of hosts"))?;
    HostList::of_file(&content).map_err(|error| format!("{name}: {error}"))
}

impl Config {
    /// The hosts that a text names, of which this one need not be, for those who give commands
    /// there. `place` names the option.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn list_of(text: &str, place: &str) -> Result<HostList> {
        let here = std::env::current_dir().unwrap_or_default();
        Ok(read_list(text, &here, place)?.0)
    }

    /// Takes the hosts that a text names, in place of those of `[group]`: those of a file, if one
    /// of that name is there, else an expression such as `n[1-4]`. `place` names the option.
    ///
    /// # Errors
    /// They cannot be read, or this host is not among them.
    pub fn set_hosts(&mut self, text: &str, place: &str) -> Result<()> {
        let here = std::env::current_dir().unwrap_or_default();
        self.group.hosts = Some(read_hosts(text, &here, place)??);
        self.group.absent = None;
        self.check_group(place)
    }

    /// Checks that this host is among the hosts that the file names.
    ///
    /// # Errors
    /// It is not.
    pub fn check_own_host(&self) -> Result<()> {
        self.group.absent.clone().map_or(Ok(()), |why| Err(ConfigError::from(why)))
    }

    /// Takes the hosts that a batch system names, where neither option nor configuration name any:
    /// two at least, on a store that other nodes may see. `lookup` has the variables of the
    /// environment.
    ///
    /// # Errors
    /// What a variable has cannot be understood, or this host is not among the hosts. There is no
    /// group then.
    pub fn take_hosts_of_environment(
        &mut self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<()> {
        let has_folder = self.group.folder.is_some() || self.shared_store().is_some();
        if self.group.hosts.is_some() || !has_folder {
            return Ok(());
        }
        let announced = HostList::of_environment(&lookup).map_err(|error| error.to_string())?;
        let Some(Announced { variable, hosts, own }) = announced else { return Ok(()) };
        let list = match hosts {
            AnnouncedHosts::List(list) => list,
            AnnouncedHosts::File(path) => {
                list_of_file(Path::new(&path)).map_err(|why| format!("{variable}: {why}"))?
            }
        };
        if list.names().len() < 2 {
            return Ok(());
        }
        let job = match variable {
            "PBS_NODEFILE" => "PBS_JOBID",
            "LSB_MCPU_HOSTS" | "LSB_HOSTS" => "LSB_JOBID",
            _ => "SLURM_JOB_ID",
        };
        let hosts = match own {
            Some(node) => Hosts { list, node, job: None },
            None => Hosts::of(list).map_err(|error| format!("{variable}: {error}"))?,
        };
        self.group.hosts = Some(Hosts { job: lookup(job), ..hosts });
        Ok(())
    }

    /// What MPI says of this process's job, if it has processes on other hosts, too, and neither
    /// option, configuration nor batch system name hosts; and the job's name.
    fn job_of_mpi(
        &self,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Option<(MpiJob, Option<String>)> {
        let has_folder = self.group.folder.is_some() || self.shared_store().is_some();
        if self.group.hosts.is_some() || !has_folder {
            return None;
        }
        let job = MpiJob::of(lookup, mpi::ancestors())?;
        let name = job.mark.as_ref().map(|mark| {
            let own = rustix::process::geteuid().as_raw();
            format!("mpi{:016x}", fnv1a(format!("1\n{own}\n{mark}\n").as_bytes()))
        });
        Some((job, name))
    }

    /// Takes the hosts of a group whose node manager runs here already, if this process's job of
    /// MPI has none of its own: it is the job's, or that of a service. Whether it is.
    pub fn take_group_of_job(
        &mut self,
        served: &Config,
        lookup: impl Fn(&str) -> Option<String>,
    ) -> bool {
        let Some((_, name)) = self.job_of_mpi(lookup) else { return false };
        let is_right = |hosts: &&Hosts| hosts.job.is_none() || hosts.job == name;
        let hosts = served.group.hosts.as_ref().filter(is_right);
        if let Some(hosts) = hosts {
            self.group.hosts = Some(hosts.clone());
            self.group.folder = served.group.folder.clone();
        }
        hosts.is_some()
    }

    /// Finds the hosts of a job that MPI alone has started, where nothing names them: its processes
    /// meet in the group's folder. Waits for the others, 10 s at most.
    ///
    /// # Errors
    /// They have not come, the launcher does not say which job it is, or the folder cannot be used.
    /// There is no group then.
    pub fn meet_hosts_of_mpi(&mut self, lookup: impl Fn(&str) -> Option<String>) -> Result<()> {
        let Some((job, name)) = self.job_of_mpi(lookup) else { return Ok(()) };
        let MpiJob { all, here, host, .. } = job;
        let Some(name) = name else {
            let said = format!(
                "MPI has {all} processes, {here} of them on this host, and neither it nor a batch \
                 system says where the others are: give the hosts by --hosts (--hosts localhost: no \
                 group)"
            );
            return Err(said.into());
        };
        let named = self.group.folder.clone();
        let folder = named.or_else(|| Some(self.shared_store()?.join(folder_of_job(&name))));
        let Some(folder) = folder else { return Ok(()) };
        let host = host.unwrap_or_else(hostname);
        let (folder, limit) = (&*folder, MEETING.as_duration());
        let meeting = Meeting { folder, job: &name, host: &host, here, all, limit };
        let list = meeting.hosts().map_err(|error| error.to_string())?;
        let node = list.position_of(&host).map_err(|error| error.to_string())?;
        self.group.folder = Some(folder.to_owned());
        self.group.hosts = Some(Hosts { list, node, job: Some(name) });
        Ok(())
    }

    /// The first backing directory that is not emulated, as those are that stand for a store.
    fn shared_store(&self) -> Option<&Path> {
        let mut stores = self.backing.iter().filter(|backing| backing.emulate.is_none());
        stores.next().map(|backing| &*backing.path)
    }

    /// Whether other nodes may have files of the stores, too, and all see what each has written.
    pub fn shares_files(&self) -> bool {
        self.is_in_group() && self.group.consistency != Consistency::Open
    }

    /// Whether other nodes are to be of one group with this one.
    pub fn is_in_group(&self) -> bool {
        self.group.hosts.as_ref().is_some_and(|hosts| !hosts.is_alone())
    }

    /// Checks that there is a folder for the group of several hosts.
    pub(super) fn check_group(&self, place: &str) -> Result<()> {
        let is_alone = self.group.hosts.as_ref().is_none_or(Hosts::is_alone);
        match is_alone || self.group_folder().is_some() {
            true => Ok(()),
            false => Err(ConfigError::new(
                place,
                "all backing directories are emulated, so none is known to be a store that all \
                 hosts see; name a folder there by folder in [group]",
            )),
        }
    }

    /// The group's folder, on all hosts the same: the one that is named, else a hidden one in the
    /// first backing directory that is not emulated, whose name follows from user, hosts and job.
    /// `None` if there are no hosts, or no such directory.
    pub fn group_folder(&self) -> Option<PathBuf> {
        let hosts = self.group.hosts.as_ref()?;
        if let Some(folder) = &self.group.folder {
            return Some(folder.clone());
        }
        let mut text = format!("1\n{}\n", rustix::process::geteuid().as_raw());
        let _ = writeln!(text, "{}", hosts.job.as_deref().unwrap_or_default());
        // One folder whatever their order: nodes with other orders find out there that they differ.
        let mut names: Vec<&str> = hosts.list.names().iter().map(AsRef::as_ref).collect();
        names.sort_unstable();
        text.extend(names.into_iter().flat_map(|name| [name, "\n"]));
        let name = format!("{FOLDER_START}{:016x}", fnv1a(text.as_bytes()));
        Some(self.shared_store()?.join(name))
    }

    /// What is said of the group, as part of the canonical text. It is no part of the instance's
    /// identity: data that is left is to be found by a later job, which has other hosts.
    pub(super) fn write_group(&self, text: &mut String) {
        let Group { hosts, folder, bind, consistency, fabric, .. } = &self.group;
        if self.group == Group::default() {
            return;
        }
        *text += "[group]\n";
        if let Some(Hosts { list, node, job }) = hosts {
            let _ =
                writeln!(text, "hosts = {}\nnode = {}", quoted(&list.names().join(",")), node.0);
            if let Some(job) = job {
                let _ = writeln!(text, "job = {}", quoted(job));
            }
        }
        if let Some(folder) = folder {
            let _ = writeln!(text, "folder = {}", quoted_path(folder));
        }
        if let Some(bind) = bind {
            let _ = writeln!(text, "bind = \"{bind}\"");
        }
        if *consistency != Consistency::default() {
            let _ = writeln!(text, "consistency = {}", quoted(consistency.name()));
        }
        if let Transport::Ucx { trusted_network } = fabric {
            let _ = writeln!(text, "fabric = {}", quoted(fabric.name()));
            if *trusted_network {
                *text += "trusted_network = true\n";
            }
        }
    }
}

impl Value<'_> {
    pub(super) fn group(&self, errors: &Errors) -> reader::Result<Group> {
        let is_canonical = self.source.name.is_none();
        let keys = if is_canonical { CANONICAL_GROUP_KEYS } else { GROUP_KEYS };
        let section = self.table(keys, "a table: [group]")?;
        let read_hosts = |value: Value<'_>| {
            let text = value.text()?;
            if !is_canonical {
                let found = read_hosts(text, self.source.folder, &value.place());
                return found.map_err(|error| error.to_string());
            }
            let list = HostList::of_expression(text).map_err(|error| value.error(error))?;
            let last = list.names().len() as u64 - 1;
            let node = section.require("node", "this host's number")?.number(0, last)?;
            let job = section.get("job").map(|job| job.text().map(str::to_owned)).transpose()?;
            Ok(Ok(Hosts { list, node: NodeId(node as u16), job }))
        };
        let hosts = section.get("hosts").map(read_hosts).and_then(|hosts| errors.ok(hosts));
        let (hosts, absent) = match hosts {
            Some(Ok(hosts)) => (Some(hosts), None),
            Some(Err(why)) => (None, Some(why.to_string())),
            None => (None, None),
        };
        let trusted_network = section
            .get("trusted_network")
            .and_then(|value| errors.ok(value.boolean()))
            .unwrap_or_default();
        Ok(Group {
            hosts,
            absent,
            folder: section.get("folder").and_then(|value| errors.ok(value.path())),
            bind: section.get("bind").and_then(|value| errors.ok(value.address())),
            consistency: section
                .get("consistency")
                .and_then(|value| errors.ok(value.consistency()))
                .unwrap_or_default(),
            fabric: section
                .get("fabric")
                .and_then(|value| errors.ok(value.fabric(trusted_network)))
                .unwrap_or_default(),
        })
    }

    fn fabric(&self, trusted_network: bool) -> reader::Result<Transport> {
        match self.text()? {
            "tls" => Ok(Transport::Tls),
            "ucx" if Transport::HAS_UCX => Ok(Transport::Ucx { trusted_network }),
            "ucx" => Err(self.error("this build has no ucx: build with --features ucx")),
            other => {
                Err(self.error(format_args!("{other:?} is no fabric; give \"tls\" or \"ucx\"")))
            }
        }
    }

    fn consistency(&self) -> reader::Result<Consistency> {
        let text = self.text()?;
        let found = Consistency::ALL.into_iter().find(|known| known.name() == text);
        found.ok_or_else(|| {
            self.error(format_args!(
                "{text:?} is no consistency; give \"auto\", \"strict\" or \"open\""
            ))
        })
    }

    fn address(&self) -> reader::Result<IpAddr> {
        let text = self.text()?;
        let wrong =
            |_| self.error(format_args!("{text:?} is no address; give one such as 10.0.0.1"));
        text.parse().map_err(wrong)
    }
}
