//! What a torture is to reach before it may end.

use clap::Args;

/// Goals; one that is not given is none.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Goals {
    /// The qualification of a release: until 10000 kills and 10000 pauses were effective and 10
    /// million operations done, or as many as the options below say
    #[arg(long)]
    pub release: bool,
    /// Until so many kills were effective
    #[arg(long, value_name = "N")]
    pub kills: Option<u64>,
    /// Until so many pauses were effective
    #[arg(long, value_name = "N")]
    pub pauses: Option<u64>,
    /// Until so many operations were done
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
}

/// What was reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reached {
    /// Kills that hit.
    pub kills: u64,
    /// Pauses that lasted all of their time.
    pub pauses: u64,
    /// Operations of all programs.
    pub operations: u64,
}

impl Goals {
    /// With the numbers of a release where it is one.
    pub fn resolved(mut self) -> Goals {
        if self.release {
            self.kills = self.kills.or(Some(10_000));
            self.pauses = self.pauses.or(Some(10_000));
            self.operations = self.operations.or(Some(10_000_000));
        }
        self
    }

    /// A tenth of all.
    pub fn tenth(self) -> Goals {
        let tenth = |goal: Option<u64>| goal.map(|goal| goal / 10);
        let Goals { release, kills, pauses, operations } = self;
        let (kills, pauses) = (tenth(kills), tenth(pauses));
        Goals { release, kills, pauses, operations: tenth(operations) }
    }

    /// Name, goal and what was reached of each.
    fn all(&self, reached: &Reached) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let all = [
            ("effective kills", self.kills, reached.kills),
            ("effective pauses", self.pauses, reached.pauses),
            ("operations", self.operations, reached.operations),
        ];
        all.into_iter().filter_map(|(name, goal, reached)| Some((name, goal?, reached)))
    }

    /// Whether there are any.
    pub fn are_given(&self) -> bool {
        self.kills.or(self.pauses).or(self.operations).is_some()
    }

    /// Whether all are reached.
    pub fn are_met(&self, reached: &Reached) -> bool {
        self.all(reached).all(|(_, goal, reached)| reached >= goal)
    }

    /// For people, a line for each; empty without goals.
    pub fn text(&self, reached: &Reached) -> String {
        let line = |(name, goal, reached): (&str, u64, u64)| {
            let verdict = if reached >= goal { "reached" } else { "NOT REACHED" };
            format!("  goal        {reached} of {goal} {name}: {verdict}\n")
        };
        self.all(reached).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_goals_of_its_own() {
        assert!(!Goals::default().resolved().are_given());
        let goals = Goals { release: true, kills: Some(5), ..Goals::default() }.resolved();
        let mut reached = Reached { kills: 5, pauses: 10_000, operations: 9_999_999 };
        assert!(!goals.are_met(&reached));
        assert!(goals.text(&reached).contains("9999999 of 10000000 operations: NOT REACHED"));
        reached.operations += 1;
        let tenth = goals.tenth();
        assert_eq!(
            (tenth.kills, tenth.pauses, tenth.operations),
            (Some(0), Some(1_000), Some(1_000_000))
        );
        assert!(goals.are_met(&reached) && !goals.text(&reached).contains("NOT"));
    }
}
