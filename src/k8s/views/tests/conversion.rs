//! Tests of the wait for the operator's own conversion webhook.

use kube::core::Status;

use super::*;
use crate::k8s::informer::ObjectEvent;

#[tokio::test]
async fn only_the_first_list_of_load_balancers_awaits_the_conversion() {
    let mut leader = LeaderViews::new();
    let at = leader.informer();
    let views = leader.views.clone();
    views.synced.send_replace(0);
    let mut apply = |event| load_balancers::apply(&at, &mut leader.load_balancers, event);
    let refused = |message: &str| {
        ObjectEvent::Refused(Status::failure(message, "InternalError").with_code(500).boxed())
    };
    assert!(!views.await_conversion());
    apply(refused("conversion webhook for LoadBalancer failed: connection refused"));
    assert!(views.await_conversion());
    apply(refused("etcdserver: request timed out"));
    assert!(!views.await_conversion());
    apply(refused("conversion webhook for LoadBalancer failed: connection refused"));
    // Pools are not listed yet. A replica whose LoadBalancers are listed waits for them.
    apply(ObjectEvent::Complete);
    assert!(!views.await_conversion() && !views.is_synced());
}
