//! `forebay profile --mpi`: how fast messages between the ranks of MPI programs are, with the MPI
//! whose `mpiexec` has started this command.
//!
//! The command is built without any MPI: it loads the library at run time, and passes communicators
//! and types as words that it does not look into, which both families of MPI take: numbers in
//! MPICH and what is made of it, addresses in Open MPI.

use forebay_node::config::{MessageSpeed, Messages};
use forebay_placement::collective::Link;
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString, OsStr};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::ptr;
use std::time::Instant;
use std::{env, fs};

/// Bytes of messages.
const SIZES: [usize; 10] =
    [0, 64, 512, 4 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20, 16 << 20];
/// Bytes that go one way with each size, and the least and the most messages for them: seconds over
/// gigabit Ethernet.
const BYTES: usize = 64 << 20;
const COUNT: (usize, usize) = (5, 1000);
/// Messages before those whose times count.
const WARMING: usize = 2;
/// Bytes of the name of a node, as all of MPI's families have it at most.
const NAME_BYTES: usize = 1024;

/// MPICH's, Intel's, MVAPICH's and Cray's: one binary interface.
const MPICH: [&CStr; 2] = [c"libmpi.so.12", c"libmpich.so.12"];
const OPEN_MPI: [&CStr; 2] = [c"libmpi.so.40", c"libmpi.so"];

/// A communicator, a type, or where a status goes: of the size of a pointer, or less.
type Word = usize;

/// The functions of an MPI library, and its constants.
struct Mpi {
    init: unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    rank: unsafe extern "C" fn(Word, *mut c_int) -> c_int,
    size: unsafe extern "C" fn(Word, *mut c_int) -> c_int,
    name: unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int,
    send: unsafe extern "C" fn(*const c_void, c_int, Word, c_int, c_int, Word) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, c_int, Word, c_int, c_int, Word, Word) -> c_int,
    world: Word,
    byte: Word,
    no_status: Word,
}

/// Measures with those that `mpiexec` has started beside this process; rank 0 prints the part of a
/// configuration, with the times as comments.
///
/// # Errors
/// It was not started by `mpiexec`, or there is no library, or none that is known.
pub fn ping_pong(library: Option<&Path>) -> Result<ExitCode, String> {
    let is_open_mpi = env::var_os("OMPI_COMM_WORLD_SIZE").is_some();
    let is_mpich = env::var_os("PMI_RANK").is_some();
    let families: Vec<&CStr> = match (is_open_mpi, is_mpich, env::var_os("PMIX_RANK")) {
        (true, ..) => OPEN_MPI.to_vec(),
        (_, true, _) => MPICH.to_vec(),
        // A batch system's launcher starts both alike.
        (.., Some(_)) => OPEN_MPI.into_iter().chain(MPICH).collect(),
        (.., None) => {
            return Err("start it on the ranks to measure between: \
                        mpiexec -n 2 forebay profile --mpi"
                .to_owned());
        }
    };
    let mpi = Mpi::load(library, &families)?;
    mpi.begin()?;
    let result = mpi.measure();
    // A rank that ends without it leaves the others waiting.
    mpi.end();
    if let Some(text) = result? {
        print!("{text}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Libraries where those of the launcher of this process usually are.
fn beside_launcher(names: &[&CStr]) -> Vec<CString> {
    let parent = format!("/proc/{}/exe", std::os::unix::process::parent_id());
    let Some(folder) = fs::read_link(parent)
        .ok()
        .and_then(|launcher| Some(launcher.parent()?.parent()?.join("lib")))
    else {
        return Vec::new();
    };
    let paths = names.iter().map(|name| folder.join(OsStr::from_bytes(name.to_bytes())));
    let there = paths.filter(|path| path.is_file());
    there.filter_map(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok()).collect()
}

/// What the loader says of its last error.
fn loader_says() -> String {
    // SAFETY: no other thread of this command loads anything.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "it cannot be loaded".to_owned();
    }
    // SAFETY: it ends with a zero, and stays until the next error.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Mpi {
    /// The library of this name, else the first that is found of those of the launcher.
    fn load(named: Option<&Path>, families: &[&CStr]) -> Result<Mpi, String> {
        let names: Vec<CString> = match named {
            Some(name) => {
                vec![CString::new(name.as_os_str().as_bytes()).map_err(|error| error.to_string())?]
            }
            None => {
                let beside = beside_launcher(families);
                beside.into_iter().chain(families.iter().map(|name| (*name).to_owned())).collect()
            }
        };
        let mut said = String::new();
        for name in &names {
            // SAFETY: a library of MPI, whose constructors every program with it runs. Its own
            // modules look for its symbols in the global scope.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if !handle.is_null() {
                return Mpi::of(handle)
                    .map_err(|what| format!("{}: {what}", name.to_string_lossy()));
            }
            said = loader_says();
        }
        Err(format!(
            "the library of MPI is not found: {said}; name it: \
             --mpi-library /path/to/libmpi.so"
        ))
    }

    /// The functions of a loaded library.
    fn of(handle: *mut c_void) -> Result<Mpi, String> {
        let symbol = |name: &CStr| {
            // SAFETY: the handle is of a loaded library.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            match found.is_null() {
                true => Err(format!("has no {}; is it a library of MPI?", name.to_string_lossy())),
                false => Ok(found),
            }
        };
        let (world, byte) = match (symbol(c"ompi_mpi_comm_world"), symbol(c"ompi_mpi_byte")) {
            (Ok(world), Ok(byte)) => (world as Word, byte as Word),
            _ if symbol(c"MPIR_Err_create_code").is_ok() => (0x4400_0000, 0x4c00_010d),
            _ => return Err("is neither of MPICH nor of Open MPI".to_owned()),
        };
        let no_status = if world == 0x4400_0000 { 1 } else { 0 };
        // SAFETY: the types are those that the standard of MPI gives these functions.
        unsafe {
            Ok(Mpi {
                init: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char) -> c_int,
                >(symbol(c"PMPI_Init")?),
                finalize: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(
                    symbol(c"PMPI_Finalize")?,
                ),
                rank: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Word, *mut c_int) -> c_int,
                >(symbol(c"PMPI_Comm_rank")?),
                size: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Word, *mut c_int) -> c_int,
                >(symbol(c"PMPI_Comm_size")?),
                name: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int,
                >(symbol(c"PMPI_Get_processor_name")?),
                send: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_void, c_int, Word, c_int, c_int, Word) -> c_int,
                >(symbol(c"PMPI_Send")?),
                receive: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(
                        *mut c_void,
                        c_int,
                        Word,
                        c_int,
                        c_int,
                        Word,
                        Word,
                    ) -> c_int,
                >(symbol(c"PMPI_Recv")?),
                world,
                byte,
                no_status,
            })
        }
    }

    fn begin(&self) -> Result<(), String> {
        // SAFETY: MPI takes no arguments of the command then.
        done("MPI_Init", unsafe { (self.init)(ptr::null_mut(), ptr::null_mut()) })
    }

    fn end(&self) {
        // SAFETY: after MPI_Init, once.
        unsafe { (self.finalize)() };
    }

    fn number(&self, of: unsafe extern "C" fn(Word, *mut c_int) -> c_int) -> Result<c_int, String> {
        let mut number = 0;
        // SAFETY: the communicator of all processes, and a place for the answer.
        done("MPI_Comm_rank", unsafe { of(self.world, &raw mut number) })?;
        Ok(number)
    }

    fn node_name(&self) -> Result<[u8; NAME_BYTES], String> {
        let (mut name, mut length) = ([0; NAME_BYTES], 0);
        // SAFETY: there is room for the longest name, and for its length.
        done("MPI_Get_processor_name", unsafe {
            (self.name)(name.as_mut_ptr().cast(), &raw mut length)
        })?;
        Ok(name)
    }

    fn send(&self, bytes: &[u8], to: c_int) -> Result<(), String> {
        // SAFETY: the bytes are there until it returns.
        done("MPI_Send", unsafe {
            (self.send)(bytes.as_ptr().cast(), bytes.len() as c_int, self.byte, to, 0, self.world)
        })
    }

    fn receive(&self, bytes: &mut [u8], from: c_int) -> Result<(), String> {
        let (buffer, count) = (bytes.as_mut_ptr().cast(), bytes.len() as c_int);
        // SAFETY: the buffer is as long as the message at most.
        done("MPI_Recv", unsafe {
            (self.receive)(buffer, count, self.byte, from, 0, self.world, self.no_status)
        })
    }

    /// Rank 0 measures with the first other one on its node, and with the first on another node;
    /// the text is its own.
    fn measure(&self) -> Result<Option<String>, String> {
        let (rank, ranks) = (self.number(self.rank)?, self.number(self.size)?);
        let name = self.node_name()?;
        if rank > 0 {
            self.send(&name, 0)?;
            let mut is_partner = [0];
            self.receive(&mut is_partner, 0)?;
            if is_partner == [1] {
                self.exchange(0, |_| ())?;
            }
            return Ok(None);
        }
        let mut names = vec![name; ranks.max(1) as usize];
        for other in 1..ranks {
            self.receive(&mut names[other as usize], other)?;
        }
        let first =
            |is_here: bool| (1..ranks).find(|other| (names[*other as usize] == name) == is_here);
        let partners = [first(false), first(true)];
        for other in (1..ranks).filter(|other| !partners.contains(&Some(*other))) {
            self.send(&[0], other)?;
        }
        let (mut text, mut found) = (String::new(), [MessageSpeed::default(); 2]);
        for (index, partner) in partners.into_iter().enumerate() {
            let Some(partner) = partner else { continue };
            self.send(&[1], partner)?;
            let mut samples = Vec::new();
            self.exchange(partner, |sample| samples.push(sample))?;
            let link = Link::fitted(&samples).ok_or("messages took no time")?;
            let what = if index == 0 { "between two nodes" } else { "within a node" };
            text += &table(what, &samples, link);
            found[index] = MessageSpeed {
                latency_ns: (link.start_s * 1e9).round() as u64,
                bandwidth: (1.0 / link.byte_s).clamp(1.0, 1e15) as u64,
            };
        }
        if partners == [None; 2] {
            return Err("there is one rank; start two or more: \
                        mpiexec -n 2 forebay profile --mpi"
                .to_owned());
        }
        Messages { between: found[0], within: found[1] }.write(&mut text);
        Ok(Some(text))
    }

    /// Messages of all sizes to another rank and back: rank 0 begins, and gets the bytes of each
    /// size and the seconds of one way, the median.
    fn exchange(&self, other: c_int, mut take: impl FnMut((f64, f64))) -> Result<(), String> {
        let is_first = other > 0;
        let mut buffer = vec![0x5a; SIZES.into_iter().max().unwrap_or(0)];
        for size in SIZES {
            let count = (BYTES / size.max(1)).clamp(COUNT.0, COUNT.1);
            let message = &mut buffer[..size];
            let mut times = Vec::with_capacity(count);
            for _ in 0..WARMING + count {
                let begun = Instant::now();
                if is_first {
                    self.send(message, other)?;
                    self.receive(message, other)?;
                } else {
                    self.receive(message, other)?;
                    self.send(message, other)?;
                }
                times.push(begun.elapsed().as_secs_f64() / 2.0);
            }
            let counted = &mut times[WARMING..];
            counted.sort_by(f64::total_cmp);
            take((size as f64, counted[counted.len() / 2]));
        }
        Ok(())
    }
}

/// The error of a call of MPI.
fn done(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what} failed with {code}")) }
}

/// Times of messages and how far the line is off them, as comments of a configuration.
fn table(what: &str, samples: &[(f64, f64)], link: Link) -> String {
    let mut text = format!("# Messages {what}, measured by `forebay profile --mpi`:\n");
    for (bytes, time_s) in samples {
        let off = (link.start_s + link.byte_s * bytes) / time_s - 1.0;
        let _ = writeln!(
            text,
            "# {:>10}  {:>8}, the line is {:+.0} % off",
            crate::text::bytes(*bytes as u64),
            forebay_node::profile::latency((time_s * 1e9) as u64),
            off * 100.0
        );
    }
    text
}
