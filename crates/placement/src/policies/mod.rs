//! The policies. A new one is one file here, and one line in [`ALL`].

mod hot_data;
mod max_bandwidth;
mod max_locality;
mod noop;
mod random;
mod user_defined;

use crate::{Hierarchy, Plan, Request};

/// Decides where a request's bytes go.
pub trait Policy: Send + Sync {
    /// The name in configuration and schema.
    fn name(&self) -> &'static str;

    /// The placement of this request: covers it exactly, and overfills no tier once the room that
    /// its pieces want was made.
    fn plan(&self, hierarchy: &Hierarchy, request: &Request) -> Plan;

    /// The request without what this policy does not look at. Requests of one class have one plan,
    /// which is what [`crate::Memo`] remembers.
    fn class(&self, request: &Request) -> Request {
        *request
    }

    /// Whether the data organizer moves blocks to lower tiers to keep room in the upper ones. If
    /// not, blocks stay where they were placed until they are flushed and dropped.
    fn moves_down(&self) -> bool {
        true
    }

    /// Whether only time counts, so that it does not matter in which lower tier bytes lie: what
    /// leaves a tier while a write waits then goes to all lower ones at once, see
    /// [`crate::leave::shares`], and what a plan gives a lower tier leaves like anything else.
    fn spreads(&self) -> bool {
        false
    }

    /// Whether the bytes of a lower piece may lie in RAM on their way to its tier. A rule that
    /// names a tier wants them there when the write returns, where a reboot does not take them.
    fn stages(&self) -> bool {
        true
    }

    /// Whether plans depend on [`crate::TierSnapshot::coldest`], or [`Policy::worth`] on hotness.
    fn compares_hotness(&self) -> bool {
        true
    }

    /// What it is worth to keep a file of this hotness and size in a tier of this capacity: of two
    /// files, the blocks of that with less leave first. Files of equal worth are the eviction's.
    fn worth(&self, _hotness: f32, _file_bytes: u64, _capacity: u64) -> Worth {
        Worth::USUAL
    }
}

/// The mantissa in the bits of a number, and those of 2^(1/4) and 2^(3/4).
const MANTISSA: u32 = (1 << 23) - 1;
const QUARTER_OCTAVE: u32 = 1.189_207_1_f32.to_bits() & MANTISSA;
const THREE_QUARTERS: u32 = 1.681_792_8_f32.to_bits() & MANTISSA;

/// How much a file is worth to a tier: in steps of half an octave, so that files which are about
/// alike do not displace each other in turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worth(u8);

impl Worth {
    /// That of a file whose policy does not go by its use, and of a small one that was used once.
    pub const USUAL: Worth = Worth(128);

    /// Of so many accesses per byte, weighted.
    pub fn of(accesses: f32) -> Worth {
        // Of the logarithm by the number's bits: with that of libm each program that is buffered
        // would load one more library.
        let bits = accesses.max(f32::MIN_POSITIVE).to_bits();
        let (exponent, mantissa) = ((bits >> 23) as i32 - 127, bits & MANTISSA);
        let half_octaves = match mantissa {
            ..QUARTER_OCTAVE => 0,
            QUARTER_OCTAVE..THREE_QUARTERS => 1,
            _ => 2,
        };
        let steps = 2 * exponent + half_octaves;
        Worth((i32::from(Self::USUAL.0) + steps).clamp(0, 255) as u8)
    }
}

impl Default for Worth {
    fn default() -> Self {
        Self::USUAL
    }
}

/// All policies, the default first.
const ALL: &[&dyn Policy] = &[
    &max_bandwidth::MaxBandwidth,
    &max_locality::MaxLocality,
    &hot_data::HotData,
    &user_defined::UserDefined,
    &noop::Noop,
    &random::Random,
];

/// A policy, as a small number that can be passed around and kept in shared memory. The default is
/// MaxBandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyId(u8);

impl PolicyId {
    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().position(|policy| policy.name() == name).map(|index| Self(index as u8))
    }

    /// So many policies there are.
    pub const COUNT: usize = ALL.len();

    /// The policy with this number, as [`PolicyId::number`] gave it.
    pub fn numbered(number: u8) -> Option<Self> {
        (usize::from(number) < ALL.len()).then_some(Self(number))
    }

    /// Its number, which is less than 256.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The policy itself.
    pub fn policy(self) -> &'static dyn Policy {
        ALL[usize::from(self.0)]
    }
}

/// The policy of this name.
pub fn policy(name: &str) -> Option<&'static dyn Policy> {
    PolicyId::named(name).map(PolicyId::policy)
}

/// The names of all policies, the default first.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|policy| policy.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worth_is_twice_the_logarithm() {
        for number in 1..100_000_u32 {
            let accesses = (number as f32 / 97.0 - 500.0).exp2().clamp(1e-18, 1e18);
            let exact = 2.0 * accesses.log2();
            let steps = f32::from(Worth::of(accesses).0) - f32::from(Worth::USUAL.0);
            assert!((steps - exact).abs() < 0.5001, "{accesses}: {steps} {exact}");
        }
        let of = |accesses| Worth::of(accesses).0;
        assert_eq!([of(1.0), of(1.41), of(2.0), of(0.5)], [128, 129, 130, 126]);
        assert_eq!([of(0.0), of(f32::NAN), of(f32::INFINITY), of(-1.0)], [0, 0, 255, 0]);
    }

    #[test]
    fn every_policy_is_found_by_name_and_number() {
        for (number, name) in names().enumerate() {
            assert_eq!(policy(name).unwrap().name(), name);
            let id = PolicyId::named(name).unwrap();
            assert_eq!(usize::from(id.number()), number);
            assert_eq!(PolicyId::numbered(id.number()), Some(id));
        }
        assert!(policy("none of these").is_none());
        assert_eq!(PolicyId::numbered(ALL.len() as u8), None);
        assert_eq!(PolicyId::default().policy().name(), "max-bandwidth");
    }
}
