//! `forebay run --keep`, and `keep` in `[run]`: the node manager of a run stays for a time, with
//! what is in the tiers, for the next one.

use crate::batch::BatchJob;
use crate::gauges;
use crate::manager::ends_with_runs;
use forebay_node::runtime::Runtime;
use forebay_node::{Config, Connection};
use forebay_pool::message::Message;
use std::time::Duration;

/// For how long a run asks its node manager to stay; zero: not at all.
#[derive(Clone, Copy)]
pub struct Keep(Duration);

impl Keep {
    /// What was `given` to the command, else what the configuration says. Within a job it is not
    /// kept: what outlives the job is killed, and its memory in /dev/shm lost to the machine.
    pub fn of(given: Option<Duration>, config: &Config, is_told: bool) -> Keep {
        let time = given.unwrap_or(config.keep);
        let job = BatchJob::current().filter(BatchJob::can_be_outlived);
        let Some(job) = job.filter(|_| !time.is_zero()) else { return Keep(time) };
        if given.is_some() || is_told {
            eprintln!(
                "forebay: keep: not in a job of {}, which nothing may outlive: the node manager ends \
                 with the run; `forebay up` before the first run of the job and `forebay down` after \
                 the last keep it between",
                job.system
            );
        }
        Keep(Duration::ZERO)
    }

    /// Asks for that. It counts from the end of the connection on, however that comes.
    pub fn ask(self, connection: &Connection) {
        if !self.0.is_zero() {
            let time_ns = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX - 1);
            // One that is gone is noticed by who waits for its answers.
            let _ = connection.send(Message::Keep { time_ns });
        }
    }

    /// Whether a node manager that a run has started is to stay.
    pub fn is_asked(self) -> bool {
        !self.0.is_zero()
    }

    /// What becomes of the node manager, for people; `None` where that is as without.
    pub fn describe(self, runtime: &Runtime) -> Option<String> {
        (self.is_asked() && ends_with_runs(runtime)).then(|| {
            format!(
                "the node manager stays for {} with what is in the tiers, for the next run; \
                 `forebay down` ends it",
                gauges::time(self.0)
            )
        })
    }
}

/// A time as the configuration has it.
pub fn time(text: &str) -> Result<Duration, String> {
    let time_ns = forebay_node::config::time_of(text);
    time_ns.map(Duration::from_nanos).ok_or_else(|| "give a time such as 10min".to_owned())
}
