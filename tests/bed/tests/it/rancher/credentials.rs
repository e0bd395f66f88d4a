//! Cloud credentials: which ones the API accepts, and how the controller processes a content.

use serde_json::{Value, json};
use testbed::eventually;
use testbed::rancher::Version;

use super::client::{Answer, ask};
use super::{DAY, SOON, Site, name};

const CHECKSUM: &str = "management.cattle.io/harvester-token-checksum";
const EXPIRATION: &str = "rancher.io/expiration-timestamp";
const EXTENDING: [Version; 4] = [Version::V2_12, Version::V2_14, Version::V2_15, Version::Main];

fn bearer(content: &str) -> &str {
    content.split("token: \"").nth(1).unwrap().split('"').next().unwrap()
}

/// A v3 token as generateKubeconfig writes it, and its kubeconfig.
async fn kubeconfig(site: &Site, user: &str) -> (String, String) {
    let key = site.key(user);
    let line = "POST /v3/clusters/c-m-prod?action=generateKubeconfig";
    let made = ask(&site.rancher, &key, line, "{}").await;
    let text = made.body["config"].as_str().unwrap().to_owned();
    (bearer(&text).to_owned(), text)
}

fn config(content: &str) -> String {
    let config = json!({"clusterId": "c-m-prod", "kubeconfigContent": content});
    json!({"type": "cloudCredential", "name": "prod", "harvestercredentialConfig": config})
        .to_string()
}

/// Content with the tokens of both kubeconfigs.
fn both(first: &str, second: &str) -> String {
    let mut config: Value = serde_saphyr::from_str(first).unwrap();
    let mut user = config["users"][0].clone();
    user["name"] = json!("second");
    user["user"]["token"] = json!(bearer(second));
    config["users"].as_array_mut().unwrap().push(user);
    config.to_string()
}

fn annotation(site: &Site, cc: &str, name: &str) -> Option<String> {
    let secret = site.rancher.secret(cc)?;
    secret["metadata"]["annotations"][name].as_str().map(str::to_owned)
}

/// Waits until the controller has processed the current content; returns the new checksum.
async fn settled(site: &Site, cc: &str, was: Option<String>) -> String {
    eventually(SOON, "checksum", async || {
        annotation(site, cc, CHECKSUM).filter(|_| annotation(site, cc, CHECKSUM) != was)
    })
    .await
    .unwrap()
}

async fn patch(site: &Site, token: &str, cc: &str, body: Value) -> Answer {
    let line =
        format!("PATCH /k8s/clusters/local/api/v1/namespaces/cattle-global-data/secrets/{cc}");
    ask(&site.rancher, token, &line, &body.to_string()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_makes_a_secret_and_strips_white_space() {
    for version in Version::ALL {
        let site = Site::new(version).await;
        let key = site.key(&site.user);
        let (_, content) = kubeconfig(&site, &site.user).await;
        let made = ask(&site.rancher, &key, "POST /v3/cloudCredentials", &config(&content)).await;
        assert_eq!(made.status, 201, "{}", made.text);
        let id = made.body["id"].as_str().unwrap();
        let cc = id.strip_prefix("cattle-global-data:").unwrap();
        assert_eq!(made.body["creatorId"], *site.user);
        assert!(!made.text.contains("kubeconfigContent"));
        assert_eq!(site.rancher.content(cc), content.trim());
        let annotations = site.rancher.secret(cc).unwrap()["metadata"]["annotations"].clone();
        assert_eq!(annotations["field.cattle.io/creatorId"], *site.user);
        assert_eq!(annotations["field.cattle.io/name"], "prod");
        assert_eq!(annotations.get(EXPIRATION).is_some(), version == Version::V2_11);

        let one = format!("/v3/cloudCredentials/{id}");
        let name_only = ask(&site.rancher, &key, &format!("PUT {one}"), r#"{"name":"x"}"#).await;
        assert_eq!((name_only.status, &name_only.body["code"]), (422, &json!("MissingRequired")));
        let other = site.key(&site.other);
        assert_eq!(ask(&site.rancher, &other, &format!("GET {one}"), "").await.status, 403);
        let seen = async |token: &str| {
            let list = ask(&site.rancher, token, "GET /v3/cloudCredentials", "").await;
            list.body["data"].as_array().unwrap().len()
        };
        assert_eq!(
            (seen(&key).await, seen(&other).await, seen(&site.key(&site.admin)).await),
            (1, 0, 1)
        );

        let path = format!("/k8s/clusters/local/api/v1/namespaces/cattle-global-data/secrets/{cc}");
        for (token, expected) in [(&key, 200), (&other, 403)] {
            assert_eq!(
                ask(&site.rancher, token, &format!("GET {path}"), "").await.status,
                expected
            );
        }
        let list = path.rsplit_once('/').unwrap().0;
        assert_eq!(ask(&site.rancher, &key, &format!("GET {list}"), "").await.status, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_controller_extends_what_it_knows_and_ends_what_it_knew() {
    for version in EXTENDING {
        let site = Site::new(version).await;
        let key = site.key(&site.user);
        let [(first, a), (second, b)] =
            [kubeconfig(&site, &site.user).await, kubeconfig(&site, &site.user).await];
        let cc = site.rancher.credential(&site.user, "prod", "c-m-prod", &a).unwrap();
        let sum = settled(&site, &cc, None).await;
        let view = site.rancher.token(name(&first)).unwrap();
        assert_eq!((view.ttl, view.owner.as_deref()), (0, Some(cc.as_str())), "{version:?}");
        let secret = site.rancher.secret(&cc).unwrap();
        let finalizer = "management.cattle.io/harvester-token-cleanup";
        assert_eq!(secret["metadata"]["finalizers"], json!([finalizer]));

        // The API refuses a content with the same tokens again, and one with another credential's.
        for content in [&a, &both(&a, &b)] {
            let line = format!("PUT /v3/cloudCredentials/cattle-global-data:{cc}");
            let answer = ask(&site.rancher, &key, &line, &config(content)).await;
            assert_eq!((answer.status, &answer.body["code"]), (500, &json!("ServerError")));
            assert!(answer.text.contains("already in use by secret"), "{}", answer.text);
        }

        // Two users by a patch: both tokens stay.
        site.rancher.edit_content(&cc, &both(&a, &b));
        let sum = settled(&site, &cc, Some(sum)).await;
        for token in [&first, &second] {
            let view = site.rancher.token(name(token)).unwrap();
            assert!(view.alive && view.ttl == 0, "{version:?}: {view:?}");
        }
        site.rancher.edit_content(&cc, &b);
        let sum = settled(&site, &cc, Some(sum)).await;
        assert_eq!(site.rancher.token(name(&first)), None, "pruned");
        assert!(site.rancher.accepts(&second));

        // Another kind of token is not extended, and the previous token ends.
        let api_key = site.rancher.api_key(&site.user, 30 * DAY, "");
        site.rancher.edit_content(&cc, &site.rancher.kubeconfig_with("c-m-prod", &api_key));
        settled(&site, &cc, Some(sum)).await;
        let view = site.rancher.token(name(&api_key)).unwrap();
        assert_eq!((view.ttl, view.owner), (30 * DAY, None));
        assert!(!site.rancher.accepts(&second), "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_2_12_nothing_is_extended_or_ended() {
    for version in [Version::V2_8, Version::V2_11] {
        let site = Site::new(version).await;
        let [(first, a), (second, b)] =
            [kubeconfig(&site, &site.user).await, kubeconfig(&site, &site.user).await];
        let cc = site.rancher.credential(&site.user, "prod", "c-m-prod", &a).unwrap();
        site.rancher.put_content(&cc, &a).unwrap();
        let noted = annotation(&site, &cc, EXPIRATION);
        let view = site.rancher.token(name(&first)).unwrap();
        let end = (view.created * 1000 + 30 * DAY).to_string();
        assert_eq!(noted, (version == Version::V2_11).then_some(end));
        site.rancher.put_content(&cc, &b).unwrap();
        // The controller would have acted by now, as it has on another server at the same time.
        let later = Site::new(Version::Main).await;
        let (_, content) = kubeconfig(&later, &later.user).await;
        let other = later.rancher.credential(&later.user, "x", "c-m-prod", &content).unwrap();
        settled(&later, &other, None).await;
        assert!(site.rancher.accepts(&first) && site.rancher.accepts(&second));
        assert_eq!(site.rancher.token(name(&second)).unwrap().ttl, 30 * DAY);
        assert_eq!(annotation(&site, &cc, CHECKSUM), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_uis_credential_dies_where_it_is_known_to() {
    for (version, dies) in [
        (Version::V2_8, true),
        (Version::V2_11, true),
        (Version::V2_12, false),
        (Version::V2_14, false),
        (Version::V2_15, true),
        (Version::Main, true),
    ] {
        let site = Site::new(version).await;
        let content = site.rancher.kubeconfig(&site.user, "c-m-prod");
        let cc = site.rancher.credential(&site.user, "prod", "c-m-prod", &content).unwrap();
        if version >= Version::V2_12 {
            settled(&site, &cc, None).await;
        }
        let token = bearer(&content);
        assert_eq!(token.starts_with("ext/"), version >= Version::V2_15);
        let config: Value = serde_saphyr::from_str(&content).unwrap();
        let names = |list: &str| -> Vec<&str> {
            config[list]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["name"].as_str().unwrap())
                .collect()
        };
        let (own, user) =
            (["rancher", "prod"], if version < Version::V2_14 { "prod" } else { "rancher" });
        let is_alone = version < Version::V2_14 || version == Version::Main;
        assert_eq!(names("clusters"), own[usize::from(is_alone)..], "{version:?}");
        assert_eq!(names("contexts"), names("clusters"));
        assert_eq!((names("users"), &config["current-context"]), (vec![user], &json!("prod")));
        assert_eq!(content.starts_with("# Generated by Rancher"), version >= Version::V2_14);
        assert!(site.rancher.accepts(token));
        site.rancher.shift(31 * DAY);
        assert_eq!(site.rancher.accepts(token), !dies, "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_that_names_an_unknown_token_is_waited_for() {
    let site = Site::new(Version::Main).await;
    let key = site.key(&site.user);
    let (first, a) = kubeconfig(&site, &site.user).await;
    let cc = site.rancher.credential(&site.user, "prod", "c-m-prod", &a).unwrap();
    let sum = settled(&site, &cc, None).await;
    let (second, b) = kubeconfig(&site, &site.user).await;
    site.rancher.delete_token(name(&second));
    let line = format!("PUT /v3/cloudCredentials/cattle-global-data:{cc}");
    let refused = ask(&site.rancher, &key, &line, &config(&b)).await;
    assert_eq!(refused.status, 500);
    assert!(refused.text.contains("failed to get token"), "{}", refused.text);
    site.rancher.edit_content(&cc, &b);
    // A credential that was changed later is settled: the controller has processed the first one by
    // then.
    let (_, c) = kubeconfig(&site, &site.user).await;
    let other = site.rancher.credential(&site.user, "other", "c-m-prod", &c).unwrap();
    settled(&site, &other, None).await;
    assert_eq!(annotation(&site, &cc, CHECKSUM), Some(sum));
    assert!(site.rancher.accepts(&first), "an unreadable content ended the token");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_without_annotations_ends_the_server() {
    let site = Site::new(Version::Main).await;
    let key = site.key(&site.user);
    let (_, content) = kubeconfig(&site, &site.user).await;
    site.rancher.edit_content("cc-bare", &content);
    eventually(SOON, "crash", async || site.rancher.is_down()).await.unwrap();
    let line = "GET /v3/tokens";
    assert!(super::client::send(&site.rancher, Some(&key), line, "").await.is_err());
    site.rancher.restart();
    eventually(SOON, "crash at the start", async || site.rancher.is_down()).await.unwrap();

    let creator = site.user.clone();
    site.rancher.edit_secret("cc-bare", |secret| {
        secret["metadata"]["annotations"] = json!({"field.cattle.io/creatorId": creator});
    });
    site.rancher.restart();
    settled(&site, "cc-bare", None).await;
    let list = ask(&site.rancher, &key, "GET /v3/cloudCredentials", "").await;
    assert_eq!(list.body["data"][0]["id"], "cattle-global-data:cc-bare");

    // Annotations without a creator: the controller processes it all the same.
    site.rancher.edit_secret("cc-nobodys", |secret| {
        secret["metadata"]["annotations"] = json!({"a": "b"});
    });
    site.rancher.edit_content("cc-nobodys", &content);
    settled(&site, "cc-nobodys", None).await;
    assert!(!site.rancher.is_down());
    assert!(!site.rancher.secret("cc-nobodys").unwrap()["metadata"]["finalizers"].is_null());
    let token = bearer(&content);
    let name = token.split(':').next().unwrap_or_default();
    let token = site.rancher.token(name).unwrap();
    assert_eq!((token.ttl, token.owner.as_deref()), (0, Some("cc-nobodys")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_of_another_version_is_refused() {
    let site = Site::new(Version::Main).await;
    let key = site.key(&site.user);
    let (_, content) = kubeconfig(&site, &site.user).await;
    let cc = site.rancher.credential(&site.user, "prod", "c-m-prod", &content).unwrap();
    settled(&site, &cc, None).await;
    let version = site.rancher.secret(&cc).unwrap()["metadata"]["resourceVersion"].clone();
    let body = |version: &Value| {
        json!({
            "metadata": {"resourceVersion": version, "annotations": {"note": "x"}},
            "data": {"harvestercredentialConfig-clusterType": "ZXh0ZXJuYWw="},
        })
    };
    let done = patch(&site, &key, &cc, body(&version)).await;
    assert_eq!(done.status, 200, "{}", done.text);
    assert_ne!(done.body["metadata"]["resourceVersion"], version);
    assert_eq!(done.body["metadata"]["annotations"]["note"], "x");
    assert_eq!(done.body["metadata"]["annotations"]["field.cattle.io/name"], "prod", "kept");
    let late = patch(&site, &key, &cc, body(&version)).await;
    assert_eq!((late.status, &late.body["reason"]), (409, &json!("Conflict")));
    let other = site.key(&site.other);
    assert_eq!(patch(&site, &other, &cc, body(&version)).await.status, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_credentials_tokens_end_with_it() {
    let site = Site::new(Version::Main).await;
    let key = site.key(&site.user);
    let (token, content) = kubeconfig(&site, &site.user).await;
    let cc = site.rancher.credential(&site.user, "prod", "c-m-prod", &content).unwrap();
    settled(&site, &cc, None).await;
    let line = format!("DELETE /v3/cloudCredentials/cattle-global-data:{cc}");
    assert_eq!(ask(&site.rancher, &key, &line, "").await.status, 200);
    eventually(SOON, "end of the token", async || !site.rancher.accepts(&token)).await.unwrap();
    assert_eq!(site.rancher.secret(&cc), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_that_is_saved_lives_again() {
    let site = Site::new(Version::Main).await;
    let (token, content) = kubeconfig(&site, &site.user).await;
    // The clock is stopped, so no hour passes by itself; moving it runs the purge.
    let now = site.rancher.now();
    site.rancher.stand(now / 3_600_000 * 3_600_000);
    assert!(site.rancher.set("kubeconfig-default-token-ttl-minutes", "1"));
    let (short, brief) = kubeconfig(&site, &site.user).await;
    site.rancher.shift(61_000);
    assert!(!site.rancher.accepts(&short));
    let cc = site.rancher.credential(&site.user, "prod", "c-m-prod", &brief).unwrap();
    settled(&site, &cc, None).await;
    assert!(site.rancher.accepts(&short), "the dead one lives");
    assert!(site.rancher.accepts(&token) && !content.is_empty());
}
