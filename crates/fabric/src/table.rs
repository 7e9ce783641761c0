//! A table whose keys are never used twice.

/// Places with generations: a key of what was removed finds nothing, whatever is there now.
pub(crate) struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    /// Puts it in, and says under which key: the place, and above it the generation.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 1, value: None });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        u64::from(place.generation) << 32 | u64::from(index)
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        let place = self.places.get(key as u32 as usize)?;
        place.value.as_ref().filter(|_| u64::from(place.generation) == key >> 32)
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let place = self.places.get_mut(key as u32 as usize)?;
        place.value.as_mut().filter(|_| u64::from(place.generation) == key >> 32)
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        let place = &mut self.places[key as u32 as usize];
        // A place whose generations are used up stays empty.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(key as u32);
        }
        place.value.take()
    }

    /// All, by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = u64::from(place.generation) << 32 | index as u64;
            Some((key, place.value.as_ref()?))
        })
    }

    pub(crate) fn keys(&self) -> Vec<u64> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_only_what_it_was_made_for() {
        let mut table = Table::default();
        let first = table.insert("first");
        let other = table.insert("other");
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_eq!(first as u32, second as u32, "the place is used again");
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.keys(), [second, other]);
    }

    #[test]
    fn a_place_without_generations_is_given_up() {
        let mut table = Table::default();
        let key = table.insert(1);
        table.places[0].generation = u32::MAX;
        let last = u64::from(u32::MAX) << 32 | (key & 0xffff_ffff);
        assert_eq!(table.remove(last), Some(1));
        assert_eq!(table.insert(2) as u32, 1, "the next place");
        assert_eq!(table.get(last), None);
    }
}
