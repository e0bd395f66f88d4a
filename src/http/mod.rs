//! HTTP servers of the process: plain HTTP for health and metrics, and TLS for the API server.
//!
//! Every replica of the operator runs both servers, leader or not. With `--admission off`, it runs
//! only the server for health and metrics. So does a lease agent.

pub mod admission;
pub mod admission_review;
pub mod certificates;
pub mod conversion;
pub mod health_endpoints;
mod large_queue;
pub mod listener;
pub mod operator_health;
pub mod registration;
mod request_body;
pub mod tls;
pub mod webhook;
