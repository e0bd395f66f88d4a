//! Fields that objects of all kinds have: how they are read, compared and set.

pub(crate) mod condition;
pub mod resource_version;
