//! Tests of the content of the configurations, and of the decision to write them.

use serde_json::json;

use super::*;

fn registration(endpoint: AdmissionEndpoint) -> Registration {
    Registration {
        namespace: "ns".to_owned(),
        endpoint,
        username: "system:serviceaccount:ns:op".to_owned(),
        bundle: "QQ==".to_owned(),
        paths: ["/v", "/m", "/c"],
        owner: None,
    }
}

#[test]
fn the_webhook_configurations_go_with_their_owner_and_the_crd_stays() {
    let named = |uid| {
        json!([{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "name": "role", "uid": uid}])
    };
    let owner = serde_json::from_value(named("1")[0].clone()).unwrap();
    let with_role = Registration { owner: Some(owner), ..service() };
    for part in [WebhookObject::Validating, WebhookObject::Mutating] {
        let wanted = with_role.wanted(part, None).unwrap();
        assert_eq!(wanted["metadata"]["ownerReferences"], named("1"));
        assert!(has_content(&wanted, &wanted));
        for other in [json!(null), named("2"), json!([{"kind": "Secret"}])] {
            let mut stored = wanted.clone();
            match other {
                Value::Null => {
                    stored["metadata"].as_object_mut().unwrap().remove("ownerReferences");
                }
                other => stored["metadata"]["ownerReferences"] = other,
            }
            assert!(!has_content(&stored, &wanted), "{stored}");
            assert_eq!(patch(&stored, &wanted)["metadata"]["ownerReferences"], named("1"));
        }
    }
    let stored = crd(&["v1beta1", "v1alpha1"]);
    let conversion = with_role.wanted(WebhookObject::Conversion, Some(&stored)).unwrap();
    assert!(conversion.get("metadata").is_none());
}

fn service() -> Registration {
    registration(AdmissionEndpoint::Service("ns".to_owned(), "svc".to_owned()))
}

fn url() -> Registration {
    registration(AdmissionEndpoint::Url("https://10.0.0.1:8443/".to_owned()))
}

fn crd(versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions.iter().map(|name| json!({"name": name})).collect();
    json!({"metadata": {"resourceVersion": "7"}, "spec": {"versions": versions}})
}

#[test]
fn judgement_fails_closed_and_changes_fail_open() {
    let validating = service().wanted(WebhookObject::Validating, None).unwrap();
    let mutating = service().wanted(WebhookObject::Mutating, None).unwrap();
    let (judge, change) = (&validating["webhooks"][0], &mutating["webhooks"][0]);
    assert_eq!(judge["failurePolicy"], "Fail");
    assert_eq!(change["failurePolicy"], "Ignore");
    assert_eq!(judge["name"], "validator.ns.harvester-load-balancer-webhook");
    assert_eq!(change["name"], "mutator.ns.harvester-load-balancer-webhook");
    assert_eq!(judge["clientConfig"]["service"]["path"], "/v");
    assert_eq!(change["clientConfig"]["service"]["path"], "/m");
    let asked: Vec<String> = [judge, change]
        .into_iter()
        .flat_map(|webhook| webhook["rules"].as_array().unwrap())
        .map(|rule| format!("{} {}", rule["resources"][0], rule["operations"]))
        .map(|text| text.replace('"', ""))
        .collect();
    assert_eq!(
        asked,
        [
            "ippools [CREATE,UPDATE,DELETE]",
            "ippools/status [UPDATE]",
            "loadbalancers [CREATE,UPDATE]",
            "ippools [CREATE,UPDATE]",
            "loadbalancers [CREATE,UPDATE]",
        ]
    );
    let own = &judge["matchConditions"][0]["expression"];
    assert_eq!(own, "request.userInfo.username != 'system:serviceaccount:ns:op'");
    // If the node of a replica has just lost power, a user waits for the time limits of both
    // webhooks.
    assert_eq!((&judge["timeoutSeconds"], &change["timeoutSeconds"]), (&json!(5), &json!(5)));
}

#[test]
fn an_address_is_put_together() {
    let wanted = url().wanted(WebhookObject::Validating, None).unwrap();
    let client = &wanted["webhooks"][0]["clientConfig"];
    assert_eq!(client["url"], "https://10.0.0.1:8443/v");
    assert_eq!(client.get("service"), None);
}

#[test]
fn a_crd_without_the_old_version_is_left_alone() {
    assert_eq!(service().wanted(WebhookObject::Conversion, Some(&crd(&["v1beta1"]))), None);
    assert_eq!(service().wanted(WebhookObject::Conversion, None), None);
    let old = crd(&["v1beta1", "v1alpha1"]);
    let wanted = url().wanted(WebhookObject::Conversion, Some(&old)).unwrap();
    let client = &wanted["spec"]["conversion"]["webhook"]["clientConfig"];
    // The CRD was installed with a Service. The merge patch must set `service` to null, to remove
    // it.
    assert_eq!(client["service"], Value::Null);
    assert!(client.get("service").is_some());
    let patch = patch(&old, &wanted);
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    assert_eq!(patch["spec"]["conversion"]["strategy"], "Webhook");
}

#[test]
fn what_the_server_adds_is_no_reason_to_write() {
    let wanted = service().wanted(WebhookObject::Validating, None).unwrap();
    let mut stored = wanted.clone();
    stored["metadata"]["resourceVersion"] = json!("1");
    stored["metadata"]["labels"]["other"] = json!("x");
    stored["webhooks"][0]["later"] = json!("field");
    assert!(has_content(&stored, &wanted));
    // An API server before Kubernetes 1.28 drops `matchConditions`.
    stored["webhooks"][0].as_object_mut().unwrap().remove("matchConditions");
    assert!(has_content(&stored, &wanted));
}

#[test]
fn a_foreign_change_is_found() {
    let wanted = service().wanted(WebhookObject::Validating, None).unwrap();
    let changes: [fn(&mut Value); 8] = [
        |s| s["webhooks"][0]["clientConfig"]["caBundle"] = json!("Qg=="),
        |s| s["webhooks"][0]["failurePolicy"] = json!("Ignore"),
        |s| s["webhooks"][0]["rules"] = json!([]),
        |s| s["webhooks"][0]["matchConditions"][0]["expression"] = json!("false"),
        |s| s["webhooks"][0]["namespaceSelector"] = json!({"matchLabels": {"a": "b"}}),
        |s| s["webhooks"].as_array_mut().unwrap().push(json!({"name": "second"})),
        |s| s["metadata"]["labels"] = json!({}),
        // An owner as Harvester's Go webhook sets it. The configuration would be removed together
        // with the Secret.
        |s| s["metadata"]["ownerReferences"] = json!([{"kind": "Secret"}]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut stored = wanted.clone();
        change(&mut stored);
        assert!(!has_content(&stored, &wanted), "{number}");
        stored["metadata"]["resourceVersion"] = json!("9");
        let patch = patch(&stored, &wanted);
        assert_eq!(patch["metadata"]["resourceVersion"], "9");
        let owned = stored["metadata"].get("ownerReferences").is_some();
        assert_eq!(patch["metadata"].get("ownerReferences").is_some(), owned);
    }
}

#[test]
fn bundles_are_found_where_they_are() {
    let wanted = service().wanted(WebhookObject::Mutating, None).unwrap();
    assert_eq!(bundles(WebhookObject::Mutating, &wanted), ["QQ=="]);
    assert!(is_ours(&wanted));
    let old = service().wanted(WebhookObject::Conversion, Some(&crd(&["v1alpha1"]))).unwrap();
    assert_eq!(bundles(WebhookObject::Conversion, &old), ["QQ=="]);
    assert_eq!(bundles(WebhookObject::Conversion, &json!({})), Vec::<&str>::new());
    // A webhook without a bundle trusts the system's authorities. Such a webhook counts as one that
    // does not trust the operator's authority.
    assert_eq!(bundles(WebhookObject::Mutating, &json!({"webhooks": [{}]})), [""]);
    assert!(!is_ours(&json!({})));
}
