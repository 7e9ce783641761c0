//! Keeping an eye on a node manager while a command waits for it: one that is stopped does not
//! answer.

use forebay_pool::clock::Timer;
use forebay_pool::liveness::{self, Halt};
use std::time::{Duration, Instant};

/// Time between two looks at the process.
const LOOK: Timer = Timer::ms(200);
/// How long it may stand still before that is said.
const SAY: Timer = Timer::seconds(2);
/// The same of a device, also where timers are scaled: under load it may take a moment.
const SAY_OF_DEVICE: Duration = Duration::from_secs(2);
/// How long a stopped one is waited for.
const GIVE_UP: Timer = Timer::seconds(60);

/// What keeps node manager `pid` from going on, in words.
fn told(pid: u32, halt: Halt) -> String {
    match halt {
        Halt::Stopped => format!(
            "node manager {pid} is stopped (SIGSTOP, or a debugger); kill -CONT {pid} continues it"
        ),
        Halt::Device => format!("node manager {pid} waits for a device that does not answer"),
    }
}

/// That node manager `pid` is stopped, if it is.
pub fn stopped(pid: u32) -> Option<String> {
    liveness::halt(pid).filter(|&halt| halt == Halt::Stopped).map(|halt| told(pid, halt))
}

/// An eye on a node manager, for one wait.
#[derive(Default)]
pub struct Watch {
    looked: Option<Instant>,
    /// What keeps it from going on, and since when.
    halted: Option<(Halt, Instant)>,
    told: bool,
}

impl Watch {
    /// Whether something kept it from going on at the last look.
    pub fn sees_a_halt(&self) -> bool {
        self.halted.is_some()
    }

    /// To be called again and again while the manager with process id `manager` is waited for. Says
    /// on stderr what keeps it from going on. One that waits for a device is waited for: it has
    /// data in hand.
    ///
    /// # Errors
    /// That it was stopped and is not continued.
    pub fn look(&mut self, manager: Option<u32>) -> Result<(), String> {
        if self.looked.is_some_and(|at| at.elapsed() < LOOK.as_duration()) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        let Some((pid, halt)) = manager.and_then(|pid| Some((pid, liveness::halt(pid)?))) else {
            self.halted = None;
            self.told = false;
            return Ok(());
        };
        let since = match self.halted {
            Some((known, since)) if known == halt => since,
            _ => Instant::now(),
        };
        self.halted = Some((halt, since));
        let text = told(pid, halt);
        if halt == Halt::Stopped && since.elapsed() > GIVE_UP.as_duration() {
            return Err(format!("{text}; its data is kept"));
        }
        let say = match halt {
            Halt::Stopped => SAY.as_duration(),
            Halt::Device => SAY_OF_DEVICE,
        };
        if since.elapsed() > say && !self.told {
            self.told = true;
            eprintln!("forebay: {text}");
        }
        Ok(())
    }
}
