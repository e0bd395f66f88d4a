//! Limits on load: connections, queues, and the size of what is read.

pub mod backoff;
pub mod connections;
pub mod fair_queue;
pub mod json_size;
