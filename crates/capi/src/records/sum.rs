//! The sum of a record's bytes, which tells whether all of them reached the store. It is taken of
//! each write, so it must cost less than the copy: eight lanes of words, and of sums of sums, so
//! that words count by their place (Fletcher's sum, by 64 bits). A page that is missing, old or in
//! another place changes it; it is no proof against intent.

/// Bytes of a step: a word for each lane.
const LINE: usize = 64;

/// A sum that grows part by part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    words: [u64; 8],
    sums: [u64; 8],
}

impl Sum {
    /// Takes in the next bytes; all but the last part are whole lines.
    pub fn add(&mut self, bytes: &[u8]) {
        let (lines, rest) = bytes.as_chunks::<LINE>();
        self.add_lines(lines);
        if !rest.is_empty() {
            let mut last = [0; LINE];
            last.iter_mut().zip(rest).for_each(|(to, &from)| *to = from);
            self.add_lines(&[last]);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn add_lines(&mut self, lines: &[[u8; LINE]]) {
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            unsafe { self.add_by_avx2(lines) };
        } else {
            self.add_by_words(lines);
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn add_lines(&mut self, lines: &[[u8; LINE]]) {
        self.add_by_words(lines);
    }

    /// The same by 32 bytes at a time.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn add_by_avx2(&mut self, lines: &[[u8; LINE]]) {
        use core::arch::x86_64::{
            __m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_storeu_si256,
        };
        // SAFETY: halves of 32 bytes, of arrays of 64.
        let load = |from: *const u8| unsafe { _mm256_loadu_si256(from.cast::<__m256i>()) };
        let half = |lanes: &[u64; 8], at: usize| load(lanes.as_ptr().cast::<u8>().wrapping_add(at));
        let (mut low, mut high) = (half(&self.words, 0), half(&self.words, 32));
        let (mut low_sum, mut high_sum) = (half(&self.sums, 0), half(&self.sums, 32));
        for line in lines {
            low = _mm256_add_epi64(low, load(line.as_ptr()));
            high = _mm256_add_epi64(high, load(line.as_ptr().wrapping_add(32)));
            low_sum = _mm256_add_epi64(low_sum, low);
            high_sum = _mm256_add_epi64(high_sum, high);
        }
        let put = |lanes: &mut [u64; 8], low, high| {
            let to = lanes.as_mut_ptr().cast::<__m256i>();
            // SAFETY: two halves of 32 bytes.
            unsafe {
                _mm256_storeu_si256(to, low);
                _mm256_storeu_si256(to.add(1), high);
            }
        };
        put(&mut self.words, low, high);
        put(&mut self.sums, low_sum, high_sum);
    }

    fn add_by_words(&mut self, lines: &[[u8; LINE]]) {
        for line in lines {
            let lanes = self.words.iter_mut().zip(&mut self.sums);
            for ((word, sum), &bytes) in lanes.zip(line.as_chunks::<8>().0) {
                *word = word.wrapping_add(u64::from_ne_bytes(bytes));
                *sum = sum.wrapping_add(*word);
            }
        }
    }

    /// The sum of all that was added.
    pub fn get(&self) -> u64 {
        // Odd factors, so that no lane is lost, and no two count alike.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let lanes = self.words.iter().chain(&self.sums);
        lanes.fold(0, |sum: u64, &lane| sum.wrapping_mul(FACTOR).wrapping_add(lane).rotate_left(29))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u64 {
        let mut sum = Sum::default();
        sum.add(bytes);
        sum.get()
    }

    fn bytes() -> Vec<u8> {
        let mut random = 7u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        };
        (0..5 * 4096 + 100).map(|_| next()).collect()
    }

    #[test]
    fn parts_and_both_ways_give_one_sum() {
        let bytes = bytes();
        let mut parts = Sum::default();
        bytes.chunks(4096).for_each(|part| parts.add(part));
        assert_eq!(parts.get(), sum(&bytes));
        let mut words = Sum::default();
        words.add_by_words(bytes.as_chunks::<LINE>().0);
        let whole = bytes.len() / LINE * LINE;
        assert_eq!(words.get(), sum(&bytes[..whole]));
    }

    #[test]
    fn pages_that_are_missing_old_or_elsewhere_show() {
        let good = bytes();
        let wanted = sum(&good);
        for page in 0..5 {
            let at = page * 4096..(page + 1) * 4096;
            let mut missing = good.clone();
            missing[at.clone()].fill(0);
            assert_ne!(sum(&missing), wanted);
            let mut moved = good.clone();
            let other = (page + 1) % 5 * 4096;
            let (one, two) = (good[at.clone()].to_vec(), good[other..other + 4096].to_vec());
            moved[at.clone()].copy_from_slice(&two);
            moved[other..other + 4096].copy_from_slice(&one);
            assert_ne!(sum(&moved), wanted);
            let mut old = good.clone();
            old[at.start + 77] ^= 1;
            assert_ne!(sum(&old), wanted);
        }
        assert_ne!(sum(&good[..good.len() - 1]), wanted);
        // Lanes are told apart, and lines.
        let mut swapped = good.clone();
        swapped.swap(0, 8);
        assert_ne!(sum(&swapped), wanted);
        swapped = good.clone();
        swapped.swap(0, 64);
        assert_ne!(sum(&swapped), wanted);
    }
}
