//! The job of a batch system in which a command runs, as its environment tells.

use serde_json::{Value, json};

/// Of a batch system, the variable with the job's id, in the order in which they are looked for:
/// one that starts jobs inside those of another comes first.
const SYSTEMS: [(&str, &str); 6] = [
    ("Flux", "FLUX_JOB_ID"),
    ("Slurm", "SLURM_JOB_ID"),
    ("PBS", "PBS_JOBID"),
    ("LSF", "LSB_JOBID"),
    ("OAR", "OAR_JOB_ID"),
    // The name says nothing: of Grid Engine, which sets SGE_TASK_ID beside it.
    ("Grid Engine", "JOB_ID"),
];

/// A job of a batch system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchJob {
    /// Which system.
    pub system: &'static str,
    /// The job's id there.
    pub id: String,
}

impl BatchJob {
    /// The one of this process.
    pub fn current() -> Option<BatchJob> {
        BatchJob::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Option<BatchJob> {
        let is_there = |name: &str| variable(name).filter(|value| !value.is_empty());
        let mut found = SYSTEMS
            .into_iter()
            .filter(|(system, _)| *system != "Grid Engine" || is_there("SGE_TASK_ID").is_some());
        if let Some(job) =
            found.find_map(|(system, name)| Some(BatchJob { system, id: is_there(name)? }))
        {
            return Some(job);
        }
        // A container of a cluster: its host's name is that of its pod.
        is_there("KUBERNETES_SERVICE_HOST")?;
        Some(BatchJob { system: "Kubernetes", id: is_there("HOSTNAME")? })
    }

    /// Whether what outlives the job goes on on a machine that others get. What is in a pod goes
    /// with the pod, memory in /dev/shm, too.
    pub fn can_be_outlived(&self) -> bool {
        self.system != "Kubernetes"
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({ "system": self.system, "id": self.id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_known_by_their_systems() {
        let job = |set: &[(&str, &str)]| {
            let found = BatchJob::of(|name| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            });
            found.map(|job| format!("{} {}", job.system, job.id))
        };
        assert_eq!(job(&[("SLURM_JOB_ID", "17")]).as_deref(), Some("Slurm 17"));
        assert_eq!(job(&[("PBS_JOBID", "3.host")]).as_deref(), Some("PBS 3.host"));
        assert_eq!(job(&[("LSB_JOBID", "9")]).as_deref(), Some("LSF 9"));
        let flux = [("SLURM_JOB_ID", "17"), ("FLUX_JOB_ID", "f4")];
        assert_eq!(job(&flux).as_deref(), Some("Flux f4"), "inside of a job of Slurm");
        assert_eq!(job(&[("JOB_ID", "1")]), None, "anything may be called so");
        let grid = [("JOB_ID", "1"), ("SGE_TASK_ID", "undefined")];
        assert_eq!(job(&grid).as_deref(), Some("Grid Engine 1"));
        let pod = [("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("HOSTNAME", "train-0")];
        assert_eq!(job(&pod).as_deref(), Some("Kubernetes train-0"));
        assert_eq!(job(&[("HOSTNAME", "a"), ("SLURM_JOB_ID", "")]), None);
    }
}
