//! Finds the files that programs have begun to write, and keeps a descriptor that says which file
//! each is, as far as there are descriptors: see docs/design/registration.md.

mod relief;

use crate::node::Node;
use crate::store::beneath::Roots;
use forebay_pool::clock::{self, Timer};
use forebay_pool::layout::FileFlags;
use forebay_pool::message::Message;
use forebay_pool::{FileId, Owner};
use relief::Relief;
use std::sync::Arc;

/// Between two looks while files come: they need not wake the thread meanwhile. For so long a file
/// can at most be without a descriptor where no thread waits for the processor.
const PAUSE: Timer = Timer::ms(2);
/// Looks that find nothing until the thread sleeps, and has to be woken.
const LOOKS: u32 = 20;
/// How long it sleeps at most.
const UNTIL_WOKEN: Timer = Timer::seconds(3600);

pub(super) struct Registrar {
    node: Arc<Node>,
    owner: Owner,
    relief: Relief,
}

impl Registrar {
    pub fn new(node: &Arc<Node>) -> Registrar {
        let owner = Node::new_owner();
        Registrar { node: Arc::clone(node), owner, relief: Relief::new(node, owner) }
    }

    /// Runs until the manager ends.
    pub fn run(mut self) {
        let queue = self.node.segment.registrations();
        let (mut idle, mut roots) = (0, Roots::default());
        while !self.node.stopping() {
            let any = self.find_all(&mut roots);
            self.find_those_put_off(&mut roots);
            let is_short = self.relief.go_on();
            idle = if any || is_short { 0 } else { idle + 1 };
            if idle < LOOKS {
                clock::sleep_ns(PAUSE.as_ns());
            } else {
                roots = Roots::default();
                queue.wait(UNTIL_WOKEN.as_ms(), || self.node.stopping());
            }
        }
    }

    /// Finds all files of which it was told. Returns whether it was told of any.
    fn find_all(&self, roots: &mut Roots) -> bool {
        let segment = &self.node.segment;
        let queue = segment.registrations();
        let mut any = false;
        while let Some(message) = queue.pop() {
            any = true;
            if let Message::Register { file, .. } = message
                && segment.header().has_file(file)
            {
                self.find(file, roots);
            }
            if self.node.stopping() {
                break;
            }
        }
        if queue.has_missed() {
            any = true;
            segment.files().touched().for_each(|file| self.find(file, roots));
        }
        any
    }

    fn find(&self, file: FileId, roots: &mut Roots) {
        let (segment, descriptors) = (&self.node.segment, &self.node.descriptors);
        if !segment.file(file).has(FileFlags::TO_FIND) {
            return;
        }
        if descriptors.are_full() || descriptors.find(segment, file, roots, self.owner).is_err() {
            descriptors.put_off(segment, file);
        }
    }

    /// Finds files that had to wait for descriptors, as many as there are by now.
    fn find_those_put_off(&self, roots: &mut Roots) {
        let (segment, descriptors) = (&self.node.segment, &self.node.descriptors);
        while !descriptors.are_full()
            && !self.node.stopping()
            && let Some(file) = descriptors.next_put_off(segment)
        {
            if descriptors.find(segment, file, roots, self.owner).is_err() {
                return descriptors.put_off(segment, file);
            }
        }
    }
}
