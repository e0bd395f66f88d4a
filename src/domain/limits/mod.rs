//! Limits on load: connections, queues, and the size of texts that are read.

pub mod backoff;
pub mod connections;
pub mod fair_queue;
pub mod json_size;
