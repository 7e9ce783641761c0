//! Array files: NumPy, HDF5, netCDF, Zarr; HDF5's own tests; MPI-IO.

use std::collections::BTreeSet;

use crate::harness::{SMALL, Site, have, python_with};

#[test]
fn arrays_are_read_back() {
    if let Some(python) = python_with("numpy, h5py, netCDF4, zarr") {
        let (ran, status) =
            Site::new(&SMALL).run_buffered(&format!("{python} $SCRIPTS/science.py"));
        assert_eq!(ran.expect(0).stdout, "all equal\n");
        status.assert_live();
        assert!(status.count("writes") > 1_000, "{}", status.text);
    }
}

#[test]
fn h5pys_own_tests() {
    let Some(python) = python_with("h5py, pytest") else { return };
    let site = Site::new(&SMALL);
    let script = format!(
        "export TMPDIR=$PWD; {python} -m pytest -q -p no:cacheprovider --pyargs h5py --basetemp=base \
         -k 'not mpi and not ros3 and not test_alignment_set_above_threshold'"
    );
    let failed = |output: &str| -> BTreeSet<String> {
        let names = output.lines().filter_map(|line| line.strip_prefix("FAILED "));
        names.map(|name| name.split(" - ").next().unwrap_or(name).to_owned()).collect()
    };
    let (ran, status) = site.run_buffered(&script);
    status.assert_live();
    assert!(ran.stdout.contains(" passed"), "{ran:?}");
    if ran.code != 0 {
        let (got, wanted) = (failed(&ran.stdout), failed(&site.run_plainly(&script).stdout));
        let new: Vec<_> = got.difference(&wanted).collect();
        assert!(!got.is_empty() && new.is_empty(), "{new:#?} fail: {}", ran.stdout);
    }
}

#[test]
fn mpi_io_on_shared_files() {
    let Some(python) = python_with("mpi4py.MPI, numpy") else { return };
    let site = Site::new(&SMALL);
    let script = format!("$(dirname {python})/mpiexec -n 4 {python} $SCRIPTS/mpi.py && rm shared");
    let status = site.same(&script);
    assert!(status.count("writes") > 100 && status.count("reads") > 100, "{}", status.text);
}

#[test]
fn a_library_that_replaces_mmap_called_itself_for_ever() {
    if !cfg!(target_arch = "x86_64") || !have(&["cc"]) {
        return;
    }
    let site = Site::new(&SMALL);
    if site.compile("hooked.c", &["-ldl"]) {
        site.same("$BIN/hooked file");
    }
}
