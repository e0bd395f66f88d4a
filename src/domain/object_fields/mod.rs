//! Fields that objects of all kinds have: how they are read, compared and set.

pub(crate) mod condition;
pub mod digest;
pub mod finalizers;
pub mod merge_patch;
pub mod resource_version;
pub mod rfc3339;
