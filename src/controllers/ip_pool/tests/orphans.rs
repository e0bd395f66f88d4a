//! Tests of the confirmation that the LoadBalancer of a claim no longer exists.

use super::super::sweep::confirm;
use super::*;

/// Client whose API server answers every request with 404 and this body.
fn missing(body: &'static str) -> kube::Client {
    let server = service_fn(async move |_: Request<Body>| {
        let body = Body::from(body.as_bytes().to_vec());
        Response::builder().status(StatusCode::NOT_FOUND).body(body).map_err(BoxError::from)
    });
    ClientBuilder::new(server, "default").build()
}

/// A proxy, or an API server that does not serve the kind yet, also answers 404. This says nothing
/// about the LoadBalancer, and its address must stay its own.
#[tokio::test]
async fn only_a_404_about_the_load_balancer_frees_its_claim() {
    let not_found = r#"{"kind": "Status", "code": 404, "message": "no", "reason": "NotFound"}"#;
    for (body, is_freed) in [(not_found, true), ("404 page not found", false), ("", false)] {
        for uid in ["uid", ""] {
            let claim = Claim { pool: "pool".to_owned(), ip: "10.0.0.1".parse().unwrap() };
            let owner = Owner { name: "ns/web".to_owned(), uid: uid.to_owned() };
            let found = confirm(&missing(body), claim, owner).await;
            assert_eq!(found.is_some(), is_freed, "{body:?} {uid:?}");
        }
    }
}
