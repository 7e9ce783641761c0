//! A breadth-first search over all that can happen, as far as a bound.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What is explored.
pub trait Model {
    /// All that there is at one moment.
    type State: Clone + Hash;
    /// What can happen next.
    type Step: Copy + Debug;

    /// All that can happen in a state.
    fn steps(&self, state: &Self::State) -> Vec<Self::Step>;

    /// Lets it happen.
    fn take(&self, state: &mut Self::State, step: Self::Step);

    /// What is wrong with a state, if anything is.
    fn wrong(&self, state: &Self::State) -> Option<String>;
}

/// What is wrong, and the steps to it.
pub type Wrong<S> = (String, Vec<S>);

/// Explores all that can happen in so many steps, or in as many as there are states of. Returns
/// how many states there were, and the deepest; with a violation, what it is and the steps to it.
pub fn explore<M: Model>(
    model: &M,
    begin: M::State,
    depth: usize,
    most: usize,
) -> Result<(usize, usize), Wrong<M::Step>> {
    let hash = |state: &M::State| {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        hasher.finish()
    };
    let mut seen = HashSet::from([hash(&begin)]);
    // Each with the step that led to it, and the place of the state before it.
    let mut trail: Vec<(usize, Option<M::Step>)> = vec![(0, None)];
    let mut queue = VecDeque::from([(begin, 0, 0)]);
    let mut deepest = 0;
    while let Some((state, at, steps)) = queue.pop_front() {
        if steps == depth || seen.len() >= most {
            continue;
        }
        for step in model.steps(&state) {
            let mut next = state.clone();
            model.take(&mut next, step);
            if !seen.insert(hash(&next)) {
                continue;
            }
            trail.push((at, Some(step)));
            if let Some(why) = model.wrong(&next) {
                return Err((why, steps_to(&trail, trail.len() - 1)));
            }
            deepest = deepest.max(steps + 1);
            queue.push_back((next, trail.len() - 1, steps + 1));
        }
    }
    Ok((seen.len(), deepest))
}

fn steps_to<S: Copy>(trail: &[(usize, Option<S>)], mut at: usize) -> Vec<S> {
    let mut steps = Vec::new();
    while let (before, Some(step)) = trail[at] {
        steps.push(step);
        at = before;
    }
    steps.reverse();
    steps
}

/// How many states are looked at in each test; `FOREBAY_LEASES_STATES` has another number.
pub fn most(usual: usize) -> usize {
    let text = std::env::var("FOREBAY_LEASES_STATES").ok();
    text.map_or(usual, |text| text.parse().expect("FOREBAY_LEASES_STATES is no number"))
}
