//! List whose entries keep their index when other entries are removed.
//!
//! An [`Id`] has four bytes. A key of the crate `slab` has eight. The size matters, because with
//! 20,000 VMs, the values of type [`Id`] take most of the memory of [`super::LabelIndex`].

use std::mem;

/// Index of an entry in a list.
pub(super) type Id = u32;

/// List of entries. An index identifies the same entry until [`Slots::take`] removes that entry. A
/// later entry may then get the index.
#[derive(Debug, Default)]
pub(super) struct Slots<T> {
    list: Vec<T>,
    free: Vec<Id>,
}

impl<T: Default> Slots<T> {
    pub(super) fn add(&mut self, entry: T) -> Id {
        if let Some(id) = self.free.pop() {
            self.list[id as usize] = entry;
            return id;
        }
        self.list.push(entry);
        Id::try_from(self.list.len() - 1).unwrap_or(Id::MAX)
    }

    /// Number of entries in the list.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.list.len() - self.free.len()
    }

    pub(super) fn take(&mut self, id: Id) -> T {
        self.free.push(id);
        mem::take(&mut self.list[id as usize])
    }

    pub(super) fn get(&self, id: Id) -> &T {
        &self.list[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: Id) -> &mut T {
        &mut self.list[id as usize]
    }
}
