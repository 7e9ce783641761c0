//! iowarp-core, the successor of the original Hermes: its FUSE mount, as its README has it on PyPI
//! (`clio_run start`, `CLIO_WITH_RUNTIME=0 clio_cte_fuse DIR -f`), with the configuration that it
//! installs. Changed in that: the port, the directory of its files, and a RAM tier of 4 GiB instead
//! of 80 % of the machine.

use super::{Mount, Peer, Place};
use crate::server::Server;
use crate::site::{self, Site};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const PEER: Peer = Peer {
    name: "iowarp-core (FUSE)",
    package: "iowarp-core",
    mount,
    configuration: "iowarp-core: clio_run start; CLIO_WITH_RUNTIME=0 clio_cte_fuse DIR -f; \
                    clio_default.yaml of the package with its own port and RAM tiers of 4 GiB \
                    (capacity \"4g\") over a file tier of 10 GB",
};

/// The package as pip installs it.
fn package(environment: &Path) -> Option<PathBuf> {
    let libraries = fs::read_dir(environment.join("lib")).ok()?;
    let mut packages =
        libraries.flatten().map(|entry| entry.path().join("site-packages/iowarp_core"));
    packages.find(|package| package.join("bin/clio_cte_fuse").is_file())
}

fn mount(site: &Site, environment: &Path) -> Result<Option<Mount>, String> {
    let Some(package) = package(environment) else { return Ok(None) };
    let default = package.join("data/clio_default.yaml");
    let text = fs::read_to_string(&default).map_err(|e| site::failed(&default, &e))?;
    let place = Place::loopback()?;
    let Place::Network(at) = place else { return Ok(None) };
    let text =
        text.replace("port: 9413", &format!("port: {}", at.port())).replace("\"0g\"", "\"4g\"");
    let config = site.path("clio.yaml");
    fs::write(&config, text).map_err(|e| site::failed(&config, &e))?;
    let (home, folder) = (site.folder("clio")?, site.folder("iowarp")?);

    let command = |name: &str| {
        let mut command = Command::new(package.join("bin").join(name));
        command
            .env("LD_LIBRARY_PATH", package.join("lib"))
            .env("CLIO_SERVER_CONF", &config)
            .env("CLIO_STORAGE_ROOT", &home)
            .env("HOME", &home)
            // Its files in /tmp carry the user's name: ours are told from those of others.
            .env("USER", format!("forebay-bench-{}", std::process::id()));
        command
    };
    let mut mount = Mount::new(folder.clone());
    mount.leaves(PathBuf::from(format!("/tmp/clio_forebay-bench-{}", std::process::id())));
    let log = site.path("clio.log");
    mount.serves(Server::start("clio_run", command("clio_run").arg("start"), &log)?);
    mount.wait(|| place.connect().is_ok())?;
    let mut fuse = command("clio_cte_fuse");
    fuse.env("CLIO_WITH_RUNTIME", "0").arg(&folder).arg("-f");
    mount.serves(Server::start("clio_cte_fuse", &mut fuse, &site.path("clio_fuse.log"))?);
    mount.wait_until_mounted()?;
    Ok(Some(mount))
}
