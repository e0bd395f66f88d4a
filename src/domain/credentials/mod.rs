//! Credentials: rotation of tokens, and accounts of guest clusters in Harvester.

pub mod children;
pub(crate) mod client_certificate;
pub mod cloud_credential;
pub mod credential_fault;
pub mod guest_account;
pub mod kubeconfig;
pub mod minter;
pub mod node_driver;
pub mod rancher_secret;
pub mod rivals;
pub mod rotation;
pub mod secret_text;
pub mod timestamp;
pub mod token;
