//! The stand-in for Rancher answers as its table says.

mod client;
mod credentials;
mod faults;
mod tokens;

use std::time::Duration;

use testbed::Rancher;
use testbed::rancher::Version;

/// Deadline for automatic reactions, on a machine that may stall.
const SOON: Duration = Duration::from_mins(1);
const DAY: i64 = 86_400_000;

/// A server with an administrator, a user with access to `c-m-prod`, and a user without.
struct Site {
    rancher: Rancher,
    admin: String,
    user: String,
    other: String,
}

impl Site {
    async fn new(version: Version) -> Self {
        let rancher = Rancher::start(version).await.unwrap();
        let [admin, user, other] = [true, false, false].map(|admin| rancher.user(admin));
        rancher.cluster("c-m-prod", "prod", &[&user]);
        Self { rancher, admin, user, other }
    }

    fn key(&self, user: &str) -> String {
        self.rancher.api_key(user, 0, "for the test")
    }
}

/// Name of a token in its bearer text.
fn name(bearer: &str) -> &str {
    bearer.trim_start_matches("ext/").split(':').next().unwrap()
}
