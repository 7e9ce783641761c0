//! What breaks, and what that takes with it.

use forebay_placement::Destination;

use crate::blocks::{BlockId, Place};
use crate::scenario::{FaultKind, Target};
use crate::simulation::{Portion, Simulation, Task};

impl Simulation {
    /// Carries out a fault.
    pub fn fault(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Slow { target, factor } => self.slow(target, factor),
            FaultKind::Fail(target) => self.fail(target),
            FaultKind::Node(node) => self.lose_node(node),
        }
    }

    fn slow(&mut self, target: Target, factor: f64) {
        let resources = match target.device {
            // Everything striped over the device waits for it.
            Some(device) => vec![self.machine.group_of_device(target.tier, device)],
            None => self.machine.resources(target.tier, target.node),
        };
        for resource in resources {
            self.fluid.set_capacity(resource, factor);
        }
    }

    /// A tier leaves the hierarchy, on one node or on all.
    fn fail(&mut self, target: Target) {
        let Some(level) = self.levels.iter().position(|tier| Some(*tier) == target.tier) else {
            return;
        };
        let nodes = match target.node {
            Some(node) => node..node + 1,
            None => 0..self.run.cluster.nodes,
        };
        let shelves: Vec<usize> = nodes.map(|node| self.shelf(node, level)).collect();
        self.lose_shelves(&shelves);
    }

    fn lose_node(&mut self, node: u32) {
        if !std::mem::replace(&mut self.node_alive[node as usize], false) {
            return;
        }
        // Transfers of the node's own ranks and workers end; whatever they copied still has its
        // source, or was never acknowledged.
        for task in self.cancel(|simulation, task| simulation.is_of(task, node)) {
            self.undo(task);
        }
        let per_node = self.run.cluster.ranks_per_node;
        let ranks = node * per_node..(node + 1) * per_node;
        for rank in ranks.clone() {
            self.ranks[rank as usize].todo.clear();
        }
        let mut lost = Vec::new();
        for level in 0..self.levels.len() {
            let shelf = self.shelf(node, level);
            while self.next_waiting(shelf).is_some() {}
            self.shelves[shelf].alive = false;
            if !self.run.cluster.tiers[self.levels[level]].shared {
                lost.push(shelf);
            }
        }
        // What it had in a shared tier is adopted by the next node that lives.
        for level in 0..self.levels.len() {
            if self.run.cluster.tiers[self.levels[level]].shared {
                self.adopt(node, level);
            }
        }
        self.lose_shelves(&lost);
        ranks.for_each(|rank| self.end_rank(rank));
    }

    fn is_of(&self, task: &Task, node: u32) -> bool {
        match task {
            Task::Open { rank }
            | Task::Write { rank, .. }
            | Task::Direct { rank, .. }
            | Task::Read { rank, .. } => self.ranks[*rank as usize].node == node,
            Task::Move { node: of, .. } | Task::Flush { node: of, .. } => *of == node,
            Task::Work { .. } => false,
        }
    }

    /// Puts back what a cancelled transfer had taken.
    fn undo(&mut self, task: Task) {
        match task {
            Task::Open { .. } | Task::Direct { .. } | Task::Read { .. } | Task::Work { .. } => {}
            Task::Write { blocks, .. } => {
                for (id, _) in blocks {
                    self.blocks[id].writers -= 1;
                    // Never written: the space it was given is free again.
                    if self.blocks[id].valid == 0 && self.blocks[id].writers == 0 {
                        self.drop_block(id);
                    }
                }
            }
            Task::Move { node, from, to, blocks, .. } => {
                let target = self.shelf(node, to);
                for (id, _) in blocks {
                    self.blocks[id].moving = false;
                    self.shelves[target].used -= self.run.cluster.block;
                }
                match from {
                    Place::Tier(level) if usize::from(level) < to => {
                        let source = self.shelf(node, usize::from(level));
                        self.shelves[source].demoting = false;
                    }
                    _ => self.shelves[target].promoting -= 1,
                }
            }
            Task::Flush { node, level, blocks, evict, .. } => {
                for (id, ..) in blocks {
                    self.blocks[id].flushing = false;
                }
                let shelf = self.shelf(node, level);
                match evict {
                    true => self.shelves[shelf].demoting = false,
                    false => self.shelves[shelf].flushing = false,
                }
            }
        }
    }

    /// Shelves and all that is on them are gone. Clean blocks are on the store; dirty ones are
    /// lost.
    fn lose_shelves(&mut self, shelves: &[usize]) {
        for &shelf in shelves {
            self.shelves[shelf].alive = false;
        }
        let cancelled = self.cancel(|simulation, task| simulation.touches(task, shelves));
        let mut again = Vec::new();
        for task in cancelled {
            match &task {
                Task::Write { rank, blocks } => {
                    // The program still has these bytes, and writes them to the store.
                    let portion = Portion {
                        to: Destination::Store,
                        blocks: blocks.iter().copied().collect(),
                    };
                    self.ranks[*rank as usize].todo.push_front(portion);
                    again.push((*rank, true));
                }
                Task::Read { rank, blocks } => {
                    let portion = Portion {
                        to: Destination::Store,
                        blocks: blocks.iter().copied().collect(),
                    };
                    self.ranks[*rank as usize].todo.push_front(portion);
                    again.push((*rank, false));
                }
                _ => {}
            }
            self.undo(task);
        }
        for &shelf in shelves {
            for id in self.shelves[shelf].list.clone() {
                self.lose(id);
            }
        }
        for &shelf in shelves {
            self.write_around(shelf);
        }
        for (rank, writes) in again {
            match writes {
                true => self.write_on(rank),
                false => self.read_on(rank),
            }
        }
        for shelf in 0..self.shelves.len() {
            self.make_room(shelf);
            if self.ended {
                self.flush(shelf);
            }
        }
    }

    fn touches(&self, task: &Task, shelves: &[usize]) -> bool {
        let on = |place: Place, home: u32| match place {
            Place::Tier(level) => shelves.contains(&self.shelf(home, usize::from(level))),
            Place::Store => false,
        };
        let first = |blocks: &[(BlockId, u64)]| {
            let block = &self.blocks[blocks[0].0];
            on(block.place, block.home)
        };
        match task {
            Task::Open { .. } | Task::Direct { .. } | Task::Work { .. } => false,
            Task::Write { blocks, .. } | Task::Read { blocks, .. } => first(blocks),
            Task::Move { node, from, to, blocks, .. } => {
                let home = self.blocks[blocks[0].0].home;
                on(*from, home) || shelves.contains(&self.shelf(*node, *to))
            }
            Task::Flush { node, level, .. } => shelves.contains(&self.shelf(*node, *level)),
        }
    }

    fn lose(&mut self, id: BlockId) {
        self.drop_block(id);
        let block = &mut self.blocks[id];
        let dirty = std::mem::take(&mut block.dirty);
        block.version += 1;
        if dirty > 0 {
            block.lost = true;
            *self.lost_files.entry(block.file).or_default() += dirty;
        }
    }

    /// Gives a dead node's blocks in a shared tier to the next node that lives.
    fn adopt(&mut self, node: u32, level: usize) {
        let nodes = self.run.cluster.nodes;
        let heirs = (1..nodes).map(|step| (node + step) % nodes);
        let Some(heir) = heirs.into_iter().find(|heir| self.node_alive[*heir as usize]) else {
            return;
        };
        let (from, to) = (self.shelf(node, level), self.shelf(heir, level));
        // Space comes with the blocks: the dead node's part of the tier becomes the heir's.
        let capacity = std::mem::take(&mut self.shelves[from].capacity);
        self.shelves[to].capacity += capacity;
        for id in self.shelves[from].list.clone() {
            self.drop_block(id);
            self.blocks[id].home = heir;
            self.put(id, level);
        }
        self.flush(to);
        self.make_room(to);
    }
}
