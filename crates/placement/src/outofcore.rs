//! The performance model of programs that compute and do I/O in turns, out of core (MLBS paper,
//! section V.A): how much faster they are with buffers between them and the store. Pure: the caller
//! measures. Times are seconds, speeds bytes per second.
//!
//! ```
//! use forebay_placement::outofcore::{Beyond, Terms};
//!
//! // Table II, I/O ratio 5: the I/O time does not hide behind the kernel.
//! let terms = Terms { kernel_s: 1800.0, copy_s: 0.0, io_s: 3143.3, direct_s: 9488.8 };
//! assert_eq!(format!("{:.2}", terms.speedup()), "3.59");
//! // Where a tenth of the bytes stays in DRAM, and the kernel loses 5 % to the movers:
//! let beyond = Beyond { resident: 0.1, kernel_loss: 0.05 };
//! assert_eq!(format!("{:.2}", terms.speedup_with(beyond)), "3.99");
//! ```

/// How much of a layer's time may be taken before waits for it have no bound (Little's law, as the
/// paper has it): beyond it the equations say too much.
pub const BUSY_MAX: f64 = 0.8;

/// Iterations from which the kernel's time is calibrated, at most, and the fewest that say
/// anything.
pub const FIRST: usize = 10;
/// See [`FIRST`].
pub const FEWEST: usize = 3;

/// Equation (1): the time to compute on so many bytes.
pub fn compute_s(bytes: f64, bytes_per_s: f64) -> f64 {
    bytes / bytes_per_s
}

/// Equation (2): the time to move so many bytes.
pub fn io_s(bytes: f64, bandwidth: f64) -> f64 {
    bytes / bandwidth
}

/// The time of an iteration whose I/O the program waits for.
pub fn blocking_s(compute_s: f64, io_s: f64) -> f64 {
    compute_s + io_s
}

/// The time of an iteration whose I/O goes on beside the next one.
pub fn asynchronous_s(compute_s: f64, io_s: f64) -> f64 {
    compute_s.max(io_s)
}

/// What equation (3) is made of, of a whole run or of an iteration alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// t_kernel: computing, undisturbed.
    pub kernel_s: f64,
    /// t_memcopy: copies between the program's memory and the buffers.
    pub copy_s: f64,
    /// t_I/O: all bytes through the layer behind the buffers, at the speed that it has in the run.
    pub io_s: f64,
    /// t_I/O of the reference: all bytes directly to and from the store.
    pub direct_s: f64,
}

/// What equation (3) leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beyond {
    /// The share of the bytes that stay in DRAM and need no layer behind it, 0 to 1.
    pub resident: f64,
    /// How much longer the kernel takes than in the reference, as a share of its time: what it
    /// loses beside the movers. Below zero where something else has disturbed the reference.
    pub kernel_loss: f64,
}

impl Terms {
    /// t_reference: the program that waits for the store.
    pub fn reference_s(&self) -> f64 {
        blocking_s(self.kernel_s, self.direct_s)
    }

    /// The time that equation (3) expects.
    pub fn time_s(&self) -> f64 {
        asynchronous_s(self.kernel_s + self.copy_s, self.io_s)
    }

    /// Equation (3).
    pub fn speedup(&self) -> f64 {
        self.reference_s() / self.time_s()
    }

    /// The time with what equation (3) leaves out.
    pub fn time_with(&self, beyond: Beyond) -> f64 {
        let kernel_s = self.kernel_s * (1.0 + beyond.kernel_loss).max(0.0);
        let through_s = self.io_s * (1.0 - beyond.resident.clamp(0.0, 1.0));
        asynchronous_s(kernel_s + self.copy_s, through_s)
    }

    /// Equation (3) with what it leaves out. The reference has neither buffers nor movers.
    pub fn speedup_with(&self, beyond: Beyond) -> f64 {
        self.reference_s() / self.time_with(beyond)
    }

    /// The share of the time that the layer behind the buffers is busy; above [`BUSY_MAX`] waits
    /// have no bound, and above 1 the program waits for it.
    pub fn busy(&self, beyond: Beyond) -> f64 {
        self.io_s * (1.0 - beyond.resident.clamp(0.0, 1.0)) / self.time_with(beyond)
    }

    /// The same of a part of the run, in iterations or in bytes.
    pub fn scaled(&self, share: f64) -> Terms {
        Terms {
            kernel_s: self.kernel_s * share,
            copy_s: self.copy_s * share,
            io_s: self.io_s * share,
            direct_s: self.direct_s * share,
        }
    }
}

/// What the kernel takes in an iteration, and what it loses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// Of an undisturbed iteration: the median of the first ones.
    pub iteration_s: f64,
    /// How much longer the mean iteration took, as a share of it; 0 if it took less.
    pub loss: f64,
}

/// Calibrates the kernel by the times of a run's iterations, in their order; `None` if there are
/// fewer than [`FEWEST`], or they took no time.
pub fn kernel(iterations_s: &[f64]) -> Option<Kernel> {
    if iterations_s.len() < FEWEST {
        return None;
    }
    let first = &iterations_s[..iterations_s.len().min(FIRST)];
    let iteration_s = median(first).filter(|&time_s| time_s > 0.0)?;
    let mean = iterations_s.iter().sum::<f64>() / iterations_s.len() as f64;
    Some(Kernel { iteration_s, loss: (mean / iteration_s - 1.0).max(0.0) })
}

/// The median of what is a number; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        _ if sorted.is_empty() => None,
        0 => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

/// What was measured of a run so far: of the thread that does most, and of the bytes of all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The kernel's time in each iteration, in their order: a list for each kind of iteration.
    pub iterations_s: Vec<Vec<f64>>,
    /// The time that the thread spent in calls.
    pub blocked_s: f64,
    /// What it read and wrote itself.
    pub own_bytes: f64,
    /// What all threads read.
    pub read_bytes: f64,
    /// What all threads wrote.
    pub written_bytes: f64,
    /// What went between DRAM and what is behind it while the program ran.
    pub moved_bytes: f64,
    /// A copy between program and buffers, as calibrated; `None` if it is not known.
    pub copy_bandwidth: Option<f64>,
    /// What the layer behind the buffers does; `None` if it is not known.
    pub layer_bandwidth: Option<f64>,
    /// What the store does in reading; `None` if it is not known.
    pub store_reads: Option<f64>,
    /// What it does in writing.
    pub store_writes: Option<f64>,
}

/// Why the model says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// There was nothing to be read or written.
    NoIo,
    /// The program reads and writes the store itself.
    NothingBuffered,
    /// Too few iterations to calibrate the kernel by.
    NoIterations,
    /// It is not known how fast the store is.
    NoStoreBandwidth,
    /// It is not known how fast a copy is.
    NoCopyBandwidth,
    /// It is not known how fast the layer behind the buffers is.
    NoLayerBandwidth,
}

impl Silent {
    /// What is missing, and what to do about it.
    pub fn why(self) -> &'static str {
        match self {
            Self::NoIo => "nothing was read or written that is buffered",
            Self::NothingBuffered => "in mode bypass nothing is buffered",
            Self::NoIterations => {
                "fewer than 3 iterations were seen; mark them by forebay_phase_begin() and \
                 forebay_phase_end()"
            }
            Self::NoStoreBandwidth => {
                "the speed of the store is not known; `forebay profile` measures it"
            }
            Self::NoCopyBandwidth => "no call was seen that copied to a buffer",
            Self::NoLayerBandwidth => {
                "the speed of what is behind the RAM tier is not known; `forebay profile` measures \
                 it"
            }
        }
    }
}

/// What the model says of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speedup {
    /// What equation (3) is made of.
    pub terms: Terms,
    /// What it leaves out.
    pub beyond: Beyond,
    /// Equation (3).
    pub expected: f64,
    /// With what it leaves out.
    pub expected_beyond: f64,
    /// t_reference over what kernel and calls really took.
    pub actual: f64,
    /// What they took.
    pub actual_s: f64,
}

/// What the model says of what was measured.
///
/// # Errors
/// Why it says nothing.
pub fn speedup(measured: &Measured) -> Result<Speedup, Silent> {
    let known = |bandwidth: Option<f64>, why: Silent| {
        bandwidth.filter(|bandwidth| bandwidth.is_finite() && *bandwidth > 0.0).ok_or(why)
    };
    let bytes = measured.read_bytes + measured.written_bytes;
    if bytes <= 0.0 {
        return Err(Silent::NoIo);
    }
    let kernels: Vec<_> = measured.iterations_s.iter().map(|times_s| kernel(times_s)).collect();
    if kernels.iter().all(Option::is_none) {
        return Err(Silent::NoIterations);
    }
    let directly = |bytes: f64, bandwidth: Option<f64>| match bytes > 0.0 {
        true => known(bandwidth, Silent::NoStoreBandwidth).map(|speed| io_s(bytes, speed)),
        false => Ok(0.0),
    };
    let direct_s = directly(measured.read_bytes, measured.store_reads)?
        + directly(measured.written_bytes, measured.store_writes)?;
    let copy = known(measured.copy_bandwidth, Silent::NoCopyBandwidth)?;
    let layer = known(measured.layer_bandwidth, Silent::NoLayerBandwidth)?;
    let taken_s: f64 = measured.iterations_s.iter().flatten().sum();
    // What kinds of too few iterations took is taken as it is.
    let undisturbed_s = |(times_s, kernel): (&Vec<f64>, &Option<Kernel>)| {
        times_s.iter().sum::<f64>() / (1.0 + kernel.map_or(0.0, |kernel| kernel.loss))
    };
    let kernel_s = measured.iterations_s.iter().zip(&kernels).map(undisturbed_s).sum();
    let terms = Terms {
        kernel_s,
        copy_s: io_s(measured.own_bytes, copy),
        io_s: io_s(bytes, layer),
        direct_s,
    };
    let resident = (1.0 - measured.moved_bytes / bytes).clamp(0.0, 1.0);
    let beyond = Beyond { resident, kernel_loss: (taken_s / kernel_s - 1.0).max(0.0) };
    let actual_s = blocking_s(taken_s, measured.blocked_s);
    Ok(Speedup {
        terms,
        beyond,
        expected: terms.speedup(),
        expected_beyond: terms.speedup_with(beyond),
        actual: terms.reference_s() / actual_s,
        actual_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's kernel, in seconds.
    const KERNEL_S: f64 = 1800.0;
    const GIB: f64 = (1u64 << 30) as f64;

    /// Table II and the columns of MLBS in Table III: I/O ratio; GiB; seconds of the store, of the
    /// burst buffer, and that MLBS blocks; what is expected, and what was sustained.
    #[rustfmt::skip]
    const TABLE: [(f64, f64, f64, f64, f64, f64, f64); 10] = [
        (50.0, 560.0, 864.8, 323.2, 6.1, 1.43, 1.43),
        (40.0, 700.0, 1088.9, 390.6, 7.4, 1.55, 1.55),
        (30.0, 934.0, 1483.3, 531.3, 9.9, 1.76, 1.76),
        (20.0, 1400.0, 2275.7, 815.0, 15.0, 2.16, 2.15),
        (15.0, 1867.0, 3041.5, 1082.2, 19.9, 2.56, 2.55),
        (10.0, 2801.0, 4716.8, 1624.9, 189.1, 3.41, 3.13),
        (5.0, 5602.0, 9488.8, 3143.3, 1242.2, 3.59, 3.59),
        (3.0, 9336.0, 16066.4, 5235.6, 2999.4, 3.41, 3.64),
        (2.0, 14004.0, 24185.8, 7894.1, 5307.4, 3.29, 3.60),
        (1.0, 28008.0, 48910.0, 15491.2, 12077.5, 3.27, 3.62),
    ];

    fn terms(store_s: f64, buffer_s: f64) -> Terms {
        Terms { kernel_s: KERNEL_S, copy_s: 0.0, io_s: buffer_s, direct_s: store_s }
    }

    #[test]
    fn the_traffic_of_the_paper_is_what_its_ratio_says() {
        for (ratio, gib, ..) in TABLE {
            assert!((2.0 * 4.0 * 3500.0 / ratio / gib - 1.0).abs() < 1e-3, "{ratio}");
        }
    }

    /// Where I/O is the longer part, all inputs are in Table II, and equation (3) gives Table III's
    /// expected column to the last digit.
    #[test]
    fn equation_3_gives_the_expected_column_where_its_inputs_are_known() {
        for (ratio, _, store_s, buffer_s, _, expected, _) in &TABLE[6..] {
            let found = terms(*store_s, *buffer_s).speedup();
            assert_eq!(format!("{found:.2}"), format!("{expected:.2}"), "ratio {ratio}");
        }
    }

    /// Where the kernel is the longer part, the paper does not say what its copies take. The column
    /// implies 57 to 114 s of them, beside a kernel of 1800 s; the equation without them is an
    /// upper bound, near by.
    #[test]
    fn elsewhere_the_expected_column_implies_copies_of_some_seconds() {
        for (ratio, gib, store_s, buffer_s, _, expected, _) in &TABLE[..6] {
            let bound = terms(*store_s, *buffer_s);
            assert!(bound.speedup() >= *expected && bound.speedup() < expected * 1.07, "{ratio}");
            let copy_s = bound.reference_s() / expected - KERNEL_S;
            assert!((57.0..114.0).contains(&copy_s), "ratio {ratio}: {copy_s}");
            // What their throughput would be: between one core's memcpy and the vectorized copy.
            assert!((8.0..30.0).contains(&(gib / copy_s)), "ratio {ratio}: {}", gib / copy_s);
            let found = Terms { copy_s, ..bound }.speedup();
            assert!((found / expected - 1.0).abs() < 1e-9);
        }
    }

    /// The sustained column is kernel and blocked time: with the kernel's loss that it implies.
    #[test]
    fn the_sustained_column_implies_what_the_kernel_loses() {
        for (ratio, _, store_s, _, blocked_s, _, actual) in &TABLE {
            let took_s = (KERNEL_S + store_s) / actual - blocked_s;
            let loss = took_s / KERNEL_S - 1.0;
            assert!((0.02..0.13).contains(&loss), "ratio {ratio}: {loss}");
        }
    }

    /// Above what is expected where DRAM holds a part: (3) alone is no bound. A node's 128 GiB, of
    /// which 70 % hold the last of what was written, which is read first, are 180 GiB of traffic.
    #[test]
    fn what_stays_in_dram_explains_a_part_of_what_was_sustained() {
        for (ratio, gib, store_s, buffer_s, _, expected, actual) in &TABLE[7..] {
            let beyond = Beyond { resident: 180.0 / gib, kernel_loss: 0.1 };
            let found = terms(*store_s, *buffer_s).speedup_with(beyond);
            assert!(found > *expected && found < *actual, "ratio {ratio}: {found}");
            assert!((found / actual - 1.0).abs() < 0.10, "ratio {ratio}: {found}");
        }
    }

    #[test]
    fn times_are_bytes_over_speeds() {
        assert_eq!(compute_s(4.0 * GIB, 2.0 * GIB), 2.0);
        assert_eq!(io_s(4.0 * GIB, 0.5 * GIB), 8.0);
        assert_eq!((blocking_s(2.0, 8.0), asynchronous_s(2.0, 8.0)), (10.0, 8.0));
        let terms = Terms { kernel_s: 8.0, copy_s: 1.0, io_s: 6.0, direct_s: 10.0 };
        assert_eq!((terms.speedup(), terms.scaled(0.5).speedup()), (2.0, 2.0));
        let beyond = Beyond { resident: 0.5, kernel_loss: 0.125 };
        assert_eq!((terms.time_with(beyond), terms.busy(beyond)), (10.0, 0.3));
        assert!(terms.busy(Beyond::default()) < BUSY_MAX);
    }

    #[test]
    fn the_first_iterations_calibrate_the_kernel() {
        let mut times = vec![1.0; FIRST];
        times[0] = 50.0;
        times.extend([1.2; 2 * FIRST]);
        let found = kernel(&times).unwrap();
        assert_eq!(found.iteration_s, 1.0);
        assert!((found.loss - (83.0 / 30.0 - 1.0)).abs() < 1e-9, "{found:?}");
        assert_eq!(kernel(&[2.0, 1.0, 1.0, 1.0]).map(|found| found.loss), Some(0.25));
        assert_eq!(kernel(&[3.0, 3.0, 1.0, 1.0]).map(|found| found.loss), Some(0.0));
        assert_eq!((kernel(&[1.0; 2]), kernel(&[0.0; 5]), median(&[f64::NAN])), (None, None, None));
    }

    fn measured() -> Measured {
        Measured {
            iterations_s: vec![vec![1.0; 8], vec![1.0; 2]],
            blocked_s: 2.0,
            own_bytes: 10.0,
            read_bytes: 10.0,
            written_bytes: 30.0,
            moved_bytes: 30.0,
            copy_bandwidth: Some(10.0),
            layer_bandwidth: Some(4.0),
            store_reads: Some(2.0),
            store_writes: Some(1.0),
        }
    }

    #[test]
    fn what_was_measured_gives_all_terms() {
        let found = speedup(&measured()).unwrap();
        let terms = Terms { kernel_s: 10.0, copy_s: 1.0, io_s: 10.0, direct_s: 35.0 };
        assert_eq!(found.terms, terms);
        assert_eq!(found.beyond, Beyond { resident: 0.25, kernel_loss: 0.0 });
        assert_eq!(
            (found.expected, found.actual, found.actual_s),
            (45.0 / 11.0, 45.0 / 12.0, 12.0)
        );
    }

    #[test]
    fn each_kind_of_iteration_has_its_own_loss() {
        let mut slowed = measured();
        slowed.iterations_s = vec![vec![1.0, 1.0, 1.0, 1.8], vec![10.0; 3], vec![5.0]];
        let found = speedup(&slowed).unwrap();
        assert!((found.terms.kernel_s - 39.0).abs() < 1e-9, "{found:?}");
        assert!((found.beyond.kernel_loss - 0.8 / 39.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn what_is_not_known_is_named() {
        let silent = |change: fn(&mut Measured)| {
            let mut measured = measured();
            change(&mut measured);
            speedup(&measured).unwrap_err()
        };
        assert_eq!(silent(|m| (m.read_bytes, m.written_bytes) = (0.0, 0.0)), Silent::NoIo);
        assert_eq!(silent(|m| drop(m.iterations_s.remove(0))), Silent::NoIterations);
        assert_eq!(silent(|m| m.store_reads = None), Silent::NoStoreBandwidth);
        assert_eq!(silent(|m| m.store_writes = Some(0.0)), Silent::NoStoreBandwidth);
        assert_eq!(silent(|m| m.copy_bandwidth = None), Silent::NoCopyBandwidth);
        assert_eq!(silent(|m| m.layer_bandwidth = Some(f64::NAN)), Silent::NoLayerBandwidth);
        let only_writes = Measured { read_bytes: 0.0, store_reads: None, ..measured() };
        assert_eq!(speedup(&only_writes).unwrap().terms.direct_s, 30.0);
        assert!(Silent::NoStoreBandwidth.why().contains("forebay profile"));
    }
}
