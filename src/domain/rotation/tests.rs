//! Tests.

mod model {
    mod tests;
    mod world {
        mod tests;
        pub use tests::*;
    }
}
