//! What the launchers of MPI tell the processes that they start: how many there are, and how many
//! on this host. None of them names the other hosts, unless a batch system does.

use std::fs;

/// How many ancestors of a process are looked at.
const ANCESTORS_MAX: usize = 16;

/// A job of MPI with processes on several hosts, as one of them sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MpiJob {
    /// How many processes it has.
    pub all: u32,
    /// How many of them are on this host: not all.
    pub here: u32,
    /// The name of this host, if the launcher has one.
    pub host: Option<String>,
    /// What all processes of the job know of it, and those of other jobs do not have.
    pub mark: Option<String>,
}

impl MpiJob {
    /// Of the environment, and of the command lines of this process's ancestors, nearest first.
    ///
    /// Open MPI has numbers and a name of the job in the environment. MPICH's Hydra, and what is
    /// made of it, has the numbers there; what tells jobs apart is where its proxy, an ancestor,
    /// reaches `mpiexec`.
    pub fn of(
        lookup: impl Fn(&str) -> Option<String>,
        ancestors: impl Iterator<Item = Vec<String>>,
    ) -> Option<Self> {
        let text = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let number = |name: &str| text(name)?.parse::<u32>().ok();
        let numbers = |all, here| {
            let (all, here) = (number(all)?, number(here)?);
            (here > 0 && here < all).then_some((all, here))
        };
        if let Some((all, here)) = numbers("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE") {
            let mark = text("PMIX_NAMESPACE").map(|name| {
                let at = text("OMPI_MCA_orte_hnp_uri").unwrap_or_default();
                format!("openmpi {name} {at}")
            });
            return Some(Self { all, here, host: None, mark });
        }
        let (all, here) = numbers("PMI_SIZE", "MPI_LOCALNRANKS")?;
        let mark = ancestors.filter_map(|words| mark_of_proxy(&words)).next();
        Some(Self { all, here, host: text("PMI_HOSTNAME"), mark })
    }
}

/// Where a proxy of Hydra reaches `mpiexec`: by one option, or with Intel's by two.
fn mark_of_proxy(words: &[String]) -> Option<String> {
    let value = |option: &str| {
        let place = words.iter().position(|word| word == option)?;
        words.get(place + 1).map(String::as_str)
    };
    let at = match value("--control-port") {
        Some(at) => at.to_owned(),
        None => format!("{}:{}", value("--upstream-host")?, value("--upstream-port")?),
    };
    Some(format!("hydra {at} {}", value("--pgid").unwrap_or_default()))
}

/// The command lines of this process's ancestors, nearest first, as far as they are seen.
pub(super) fn ancestors() -> impl Iterator<Item = Vec<String>> {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may have anything in it: state, parent.
        let parent = stat[stat.rfind(')')?..].split(' ').nth(2)?.parse::<u32>().ok()?;
        (parent > 0).then_some(parent)
    };
    let pids = std::iter::successors(parent(std::process::id()), move |pid| parent(*pid));
    pids.take(ANCESTORS_MAX).map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = line.split(|byte| *byte == 0);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(environment: &[(&str, &str)], ancestors: &[&str]) -> Option<MpiJob> {
        let lookup = |name: &str| {
            let mut all = environment.iter();
            all.find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let words = |line: &&str| line.split(' ').map(str::to_owned).collect();
        MpiJob::of(lookup, ancestors.iter().map(words))
    }

    #[test]
    fn what_launchers_say_is_understood() {
        let hydra = [("PMI_SIZE", "3"), ("MPI_LOCALNRANKS", "2"), ("PMI_HOSTNAME", "ha")];
        let proxy =
            "hydra_pmi_proxy --control-port 10.0.0.254:40973 --rmk user --pgid 0 --proxy-id 1";
        let found = job(&hydra, &["bash script", proxy, "mpiexec -n 3 x"]).unwrap();
        let mark = Some("hydra 10.0.0.254:40973 0".to_owned());
        assert_eq!(found, MpiJob { all: 3, here: 2, host: Some("ha".to_owned()), mark });
        let intel = "hydra_bstrap_proxy --upstream-host login --upstream-port 33151 --pgid 1";
        assert_eq!(job(&hydra, &[intel]).unwrap().mark.unwrap(), "hydra login:33151 1");
        // Known to be of several hosts, and no more.
        assert_eq!(job(&hydra, &["bash", "hydra --control-port"]).unwrap().mark, None);

        let open = [
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
            ("PMIX_NAMESPACE", "312868865"),
            ("OMPI_MCA_orte_hnp_uri", "312868864.0;tcp://10.0.0.254:33139"),
        ];
        let found = job(&open, &[]).unwrap();
        let mark = Some("openmpi 312868865 312868864.0;tcp://10.0.0.254:33139".to_owned());
        assert_eq!(found, MpiJob { all: 2, here: 1, host: None, mark });
        assert_eq!(job(&open[..3], &[]).unwrap().mark.unwrap(), "openmpi 312868865 ");
    }

    #[test]
    fn a_job_of_one_host_is_none() {
        assert_eq!(job(&[], &[]), None);
        assert_eq!(job(&[("PMI_SIZE", "2")], &[]), None);
        for here in ["2", "0", "3", "x", ""] {
            assert_eq!(job(&[("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", here)], &[]), None, "{here}");
        }
    }

    #[test]
    fn the_parent_is_the_first_ancestor() {
        let first = ancestors().next().unwrap();
        let parent = std::os::unix::process::parent_id();
        let line = fs::read(format!("/proc/{parent}/cmdline")).unwrap();
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        assert_eq!(first, words);
    }
}
