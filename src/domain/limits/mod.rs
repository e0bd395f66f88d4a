//! Limits on load: connections, queues, rates, and the size of texts that are read, stored and
//! reported.

pub mod backoff;
pub mod connections;
pub mod fair_queue;
pub mod json_size;
pub mod reconcile_pace;
pub mod text;
pub mod token_bucket;
