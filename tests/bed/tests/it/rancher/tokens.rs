//! Tokens: their lifetimes, who sees them, and how a refused one is answered.

use std::time::Duration;

use serde_json::json;
use testbed::rancher::{Role, Version};

use super::client::{ask, send};
use super::{DAY, Site, name};

const REVIEW: &str = "apis/authentication.k8s.io/v1/selfsubjectreviews";
const NINETY: i64 = 90 * DAY;

#[tokio::test(flavor = "multi_thread")]
async fn a_v3_token_lives_as_long_as_its_version_allows() {
    let main = Version::Main;
    for (version, settings, rows) in [
        (
            main,
            [("", ""); 2],
            [(0, NINETY), (60_000, 60_000), (1, 1), (200 * DAY, NINETY), (-1, NINETY)],
        ),
        (
            main,
            [("auth-token-max-ttl-minutes", "10"), ("", "")],
            [(0, 600_000), (-1, 600_000), (60_000, 60_000), (200 * DAY, 600_000), (1, 1)],
        ),
        (
            main,
            [("auth-token-max-ttl-minutes", "0"), ("", "")],
            [(0, NINETY), (-1, -1), (200 * DAY, 200 * DAY), (1, 1), (60_000, 60_000)],
        ),
        (
            main,
            [("auth-token-max-ttl-minutes", "0"), ("auth-token-default-ttl-minutes", "0")],
            [(0, -1), (-1, -1), (200 * DAY, 200 * DAY), (1, 1), (60_000, 60_000)],
        ),
        (
            Version::V2_8,
            [("", ""); 2],
            [(0, NINETY), (-1, NINETY), (200 * DAY, NINETY), (1, 1), (60_000, 60_000)],
        ),
        (
            Version::V2_15,
            [("auth-token-max-ttl-minutes", "0"), ("", "")],
            [(0, 0), (-1, -1), (200 * DAY, 200 * DAY), (1, 1), (60_000, 60_000)],
        ),
    ] {
        let site = Site::new(version).await;
        let key = site.key(&site.user);
        for (setting, value) in settings.into_iter().filter(|(setting, _)| !setting.is_empty()) {
            assert!(site.rancher.set(setting, value), "{setting}");
        }
        for (asked, expected) in rows {
            let body = json!({"type": "token", "ttl": asked, "description": "d"}).to_string();
            let made = ask(&site.rancher, &key, "POST /v3/tokens", &body).await;
            assert_eq!(
                (made.status, &made.body["ttl"], &made.body["expiresAt"]),
                (201, &json!(expected), &json!("")),
                "{version:?} {settings:?} {asked}"
            );
        }
    }
    let site = Site::new(main).await;
    let key = site.key(&site.user);
    let wrong = ask(&site.rancher, &key, "POST /v3/tokens", r#"{"ttl":"60000"}"#).await;
    assert_eq!((wrong.status, &wrong.body["code"]), (422, &json!("InvalidFormat")));
    assert_eq!(wrong.body["status"], 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfigs_token_follows_its_own_settings() {
    let (usual, max) = ("kubeconfig-default-token-ttl-minutes", "kubeconfig-max-token-ttl-minutes");
    for (set, bound, expected) in [
        ("43200", "129600", 30 * DAY),
        ("5", "129600", 300_000),
        ("0", "129600", NINETY),
        ("-1", "129600", NINETY),
        ("1000000", "129600", NINETY),
        ("43200", "0", 30 * DAY),
        ("43200", "10", 600_000),
        ("0", "0", -1),
    ] {
        let site = Site::new(Version::Main).await;
        assert!(site.rancher.set(usual, set) && site.rancher.set(max, bound));
        assert!(site.rancher.set("auth-token-max-ttl-minutes", "10"), "does not count here");
        let key = site.key(&site.user);
        let line = "POST /v3/clusters/c-m-prod?action=generateKubeconfig";
        let made = ask(&site.rancher, &key, line, "{}").await;
        assert_eq!((made.status, &made.body["type"]), (200, &json!("generateKubeConfigOutput")));
        let config = made.body["config"].as_str().unwrap();
        let token = config.split("token: \"").nth(1).unwrap().split('"').next().unwrap();
        assert!(token.starts_with(&format!("kubeconfig-{}", site.user)), "{token}");
        let view = site.rancher.token(name(token)).unwrap();
        assert_eq!((view.ttl, view.alive), (expected, expected > 0), "{set} {bound}");
        assert_eq!(view.description, "Kubeconfig token");
        let read: serde_json::Value = serde_saphyr::from_str(config).unwrap();
        let server = format!("{}/k8s/clusters/c-m-prod", site.rancher.url());
        assert_eq!(read["clusters"][0]["cluster"]["server"], *server);
        let authority = &read["clusters"][0]["cluster"]["certificate-authority-data"];
        let authority: k8s_openapi::ByteString = serde_json::from_value(authority.clone()).unwrap();
        assert_eq!(authority.0, site.rancher.ca_pem().as_bytes());
        for (user, expected) in [(&site.other, 403), (&site.admin, 200)] {
            let key = site.key(user);
            assert_eq!(ask(&site.rancher, &key, line, "{}").await.status, expected);
        }
        let line = "POST /v3/clusters/c-nope?action=generateKubeconfig";
        assert_eq!(ask(&site.rancher, &key, line, "{}").await.status, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tokens_life_counts_from_the_whole_second_of_its_making() {
    let site = Site::new(Version::Main).await;
    site.rancher.stand(1_800_000_000_400);
    let key = site.key(&site.user);
    let line = "POST /v3/tokens";
    let short = ask(&site.rancher, &key, line, r#"{"ttl":5000,"description":"x y"}"#).await;
    let bearer = short.body["token"].as_str().unwrap();
    let (id, secret) = bearer.split_once(':').unwrap();
    assert_eq!((short.body["id"].as_str(), short.body["name"].as_str()), (Some(id), Some(id)));
    assert!(id.starts_with("token-") && id.len() == 11 && secret.len() == 54, "{id}");
    assert_eq!(short.body["created"], "2027-01-15T08:00:00Z");
    assert_eq!(short.headers["date"], "Fri, 15 Jan 2027 08:00:00 GMT");

    let itself = format!("GET /v3/tokens/{id}");
    let read = ask(&site.rancher, bearer, &itself, "").await;
    assert_eq!((read.status, &read.body["ttl"]), (200, &json!(5000)));
    assert_eq!(read.body["expiresAt"], "2027-01-15T08:00:05Z");
    assert_eq!(read.body["lastUsedAt"], "2027-01-15T08:00:00Z");
    assert_eq!((&read.body["expired"], &read.body["current"]), (&json!(false), &json!(false)));
    assert!(read.body.get("token").is_none(), "a secret is returned once");

    site.rancher.advance(Duration::from_millis(4_599));
    assert_eq!(ask(&site.rancher, bearer, &itself, "").await.status, 200);
    site.rancher.advance(Duration::from_millis(1));
    assert_eq!(ask(&site.rancher, bearer, &itself, "").await.status, 401);
    assert_eq!(ask(&site.rancher, bearer, line, "{}").await.status, 401, "it cannot renew itself");
    let read = ask(&site.rancher, &key, &itself, "").await;
    assert_eq!((read.status, &read.body["expired"]), (200, &json!(true)), "not purged yet");
    site.rancher.restart();
    assert_eq!(ask(&site.rancher, &key, &itself, "").await.status, 404, "purged");
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_has_their_own_tokens_only() {
    let site = Site::new(Version::Main).await;
    let [admin, user] = [&site.admin, &site.user].map(|who| site.key(who));
    let path = format!("/v3/tokens/{}", name(&user));
    for (key, method, expected) in
        [(&admin, "GET", 404), (&admin, "DELETE", 404), (&user, "PUT", 404), (&user, "GET", 200)]
    {
        let answer = ask(&site.rancher, key, &format!("{method} {path}"), "{}").await;
        assert_eq!(answer.status, expected, "{method}");
    }
    let list = ask(&site.rancher, &user, "GET /v3/tokens", "").await;
    let names: Vec<_> = list.body["data"].as_array().unwrap().iter().map(|t| &t["id"]).collect();
    assert_eq!(names, [name(&user)]);
    assert_eq!(list.body["type"], "collection");
    assert_eq!(ask(&site.rancher, &user, "PATCH /v3/tokens", "").await.status, 405);

    let gone = ask(&site.rancher, &user, &format!("DELETE {path}"), "").await;
    assert_eq!((gone.status, gone.text.as_str()), (204, ""));
    assert_eq!(ask(&site.rancher, &user, &format!("GET {path}"), "").await.status, 401);
    let again = site.key(&site.user);
    let again = ask(&site.rancher, &again, &format!("DELETE {path}"), "").await;
    assert_eq!((again.status, &again.body["code"]), (404, &json!("NotFound")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_token_is_refused_in_the_words_of_the_api_that_it_is_sent_to() {
    let site = Site::new(Version::Main).await;
    let dead = site.key(&site.user);
    site.rancher.delete_token(name(&dead));
    let good = site.key(&site.user);
    let wrong = format!("{}:{}", name(&good), "x".repeat(54));
    for bad in [&dead, &wrong, &"rubbish".to_owned(), &format!("ext/{good}")] {
        let v3 = ask(&site.rancher, bad, "GET /v3/tokens", "").await;
        assert_eq!((v3.status, &v3.body["status"]), (401, &json!("401")));
        assert_eq!(v3.body["message"], "Unauthorized 401: must authenticate");
        assert_eq!(v3.headers["x-api-cattle-auth"], "false");
        for path in ["k8s/clusters/local/version", "version", "apis/ext.cattle.io/v1/tokens"] {
            let local = ask(&site.rancher, bad, &format!("GET /{path}"), "").await;
            assert_eq!((local.status, &local.body["reason"]), (401, &json!("Unauthorized")));
        }
        for cluster in ["c-m-prod", "c-nope"] {
            let line = format!("POST /k8s/clusters/{cluster}/{REVIEW}");
            let answer = ask(&site.rancher, bad, &line, "{}").await;
            assert_eq!((answer.status, &answer.body["Code"]["Code"]), (403, &json!("Forbidden")));
            assert!(answer.text.contains("system:unauthenticated"), "{}", answer.text);
        }
    }
    let version = "GET /k8s/clusters/local/version";
    assert_eq!(send(&site.rancher, None, version, "").await.unwrap().status, 200);
    assert_eq!(send(&site.rancher, Some(""), version, "").await.unwrap().status, 200);
    let other = format!("POST /k8s/clusters/local/{REVIEW}");
    let refused = send(&site.rancher, None, &other, "{}").await.unwrap();
    assert_eq!((refused.status, refused.text.as_str()), (401, "not authorized"));

    for (user, cluster, expected) in [
        (&site.user, "c-m-prod", 201),
        (&site.user, "local", 201),
        (&site.other, "c-m-prod", 403),
        (&site.user, "c-nope", 403),
        (&site.admin, "c-nope", 404),
    ] {
        let key = site.key(user);
        let answer =
            ask(&site.rancher, &key, &format!("POST /k8s/clusters/{cluster}/{REVIEW}"), "{}").await;
        assert_eq!(answer.status, expected, "{cluster}: {}", answer.text);
        assert!(!answer.text.contains("system:unauthenticated"));
        if expected == 201 {
            let info = &answer.body["status"]["userInfo"];
            assert_eq!(info["username"], **user);
            assert_eq!(info["extra"]["requesttokenid"], json!([name(&key)]));
        }
    }
    site.rancher.agent("c-m-prod", false);
    let line = format!("POST /k8s/clusters/c-m-prod/{REVIEW}");
    let away = ask(&site.rancher, &good, &line, "{}").await;
    assert_eq!((away.status, &away.body["Message"]), (503, &json!("cluster not provisioned")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_one_cluster_is_good_for_that_alone() {
    let site = Site::new(Version::Main).await;
    let key = site.rancher.scoped_key(&site.user, 0, "c-m-prod");
    for (line, expected) in [
        ("GET /v3/tokens", 401),
        ("GET /v3/clusters/c-m-prod", 200),
        ("POST /k8s/clusters/c-m-prod/apis/authentication.k8s.io/v1/selfsubjectreviews", 201),
        ("POST /k8s/clusters/local/apis/authentication.k8s.io/v1/selfsubjectreviews", 401),
    ] {
        assert_eq!(ask(&site.rancher, &key, line, "{}").await.status, expected, "{line}");
    }
    let key = site.rancher.scoped_key(&site.user, 0, "local");
    for (line, expected) in [
        ("GET /v3/tokens", 401),
        ("GET /apis/ext.cattle.io/v1/tokens", 401),
        ("POST /k8s/clusters/local/apis/authentication.k8s.io/v1/selfsubjectreviews", 201),
        ("POST /k8s/clusters/c-m-prod/apis/authentication.k8s.io/v1/selfsubjectreviews", 403),
    ] {
        assert_eq!(ask(&site.rancher, &key, line, "{}").await.status, expected, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_of_own_rights_answers_by_the_role() {
    let site = Site::new(Version::Main).await;
    let (key, admin) = (site.key(&site.user), site.key(&site.admin));
    let asks = async |key: &str, cluster: &str, what: serde_json::Value| {
        let path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let body = json!({"spec": what}).to_string();
        ask(&site.rancher, key, &format!("POST /k8s/clusters/{cluster}/{path}"), &body).await
    };
    let create = |namespace: &str| json!({"resourceAttributes": {"verb": "create", "group": "kubevirt.io", "resource": "virtualmachines", "namespace": namespace}});
    let role = |writes, namespaces: &[&str]| {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        site.rancher.role("c-m-prod", &site.user, Role { writes, namespaces });
    };
    for (restricted, key, cluster, what, allowed) in [
        (None, &admin, "local", create(""), true),
        (None, &key, "local", create(""), false),
        (None, &key, "c-m-prod", create(""), true),
        (Some((false, &[][..])), &key, "c-m-prod", create(""), false),
        (Some((false, &[])), &admin, "c-m-prod", create(""), true),
        (Some((true, &["team"])), &key, "c-m-prod", create(""), false),
        (Some((true, &["team"])), &key, "c-m-prod", create("team"), true),
    ] {
        if let Some((writes, namespaces)) = restricted {
            role(writes, namespaces);
        }
        let answer = asks(key, cluster, what.clone()).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        assert_eq!(answer.body["status"]["allowed"], allowed, "{restricted:?} {cluster} {what}");
    }
    assert_eq!(asks(&key, "c-m-prod", json!({})).await.status, 422);
    let seen = ask(&site.rancher, &key, "GET /k8s/clusters/c-m-prod/v1/namespaces", "").await;
    assert_eq!(seen.body["data"][0]["metadata"]["name"], "team", "{}", seen.text);
    assert_eq!(seen.body["count"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hashed_tokens_are_accepted_and_not_readable() {
    let site = Site::new(Version::Main).await;
    let plain = site.key(&site.user);
    site.rancher.hash_tokens(true);
    let hashed = site.key(&site.user);
    for (key, is_hashed) in [(&plain, false), (&hashed, true)] {
        assert_eq!(ask(&site.rancher, key, "GET /v3/tokens", "").await.status, 200);
        let stored = site.rancher.token(name(key)).unwrap().stored;
        assert_eq!(stored.starts_with("$3:1:"), is_hashed);
        assert_eq!(key.contains(&stored), !is_hashed);
    }
}

/// A second replica behind the same address. The requests go to both in turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_replica_accepts_what_is_gone_and_refuses_new_ext_tokens() {
    let site = Site::new(Version::Main).await;
    site.rancher.second_replica(Duration::from_hours(1));
    let both = async |token: &str| {
        let line = "POST /k8s/clusters/c-m-prod/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let mut answers = [0, 0];
        for answer in &mut answers {
            *answer = ask(&site.rancher, token, line, "{}").await.status;
        }
        answers.sort_unstable();
        answers
    };
    let v3 = site.key(&site.user);
    let ext = site.rancher.ext_key(&site.user, 0, "");
    assert_eq!((both(&v3).await, both(&ext).await), ([201, 201], [201, 403]));
    site.rancher.delete_token(name(&v3));
    assert!(!site.rancher.accepts(&v3));
    assert_eq!(both(&v3).await, [201, 403]);
    site.rancher.shift(2 * 3_600_000);
    assert_eq!((both(&v3).await, both(&ext).await), ([403, 403], [201, 201]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ext_tokens_are_an_api_of_their_own() {
    let path = "/apis/ext.cattle.io/v1/tokens";
    let site = Site::new(Version::V2_11).await;
    // A plain user's roles do not name missing kinds; an administrator has a right to any kind.
    for (user, status) in [(site.user.clone(), 403), (site.rancher.user(true), 404)] {
        let key = site.key(&user);
        assert_eq!(ask(&site.rancher, &key, &format!("GET {path}"), "").await.status, status);
    }

    for version in [Version::V2_12, Version::V2_15, Version::Main] {
        let site = Site::new(version).await;
        let key = site.key(&site.user);
        let body = json!({
            "apiVersion": "ext.cattle.io/v1", "kind": "Token", "metadata": {"name": "mine"},
            "spec": {"ttl": 200 * DAY, "description": "d"},
        });
        let made = ask(&site.rancher, &key, &format!("POST {path}"), &body.to_string()).await;
        let token = made.body["metadata"]["name"].as_str().unwrap();
        assert_eq!((made.status, &made.body["spec"]["ttl"]), (201, &json!(NINETY)));
        assert!(token.starts_with("token-"), "{token}: a name that is sent is ignored");
        let value = made.body["status"]["value"].as_str().unwrap();
        let bearer = format!("ext/{token}:{value}");
        let shown = made.body["status"]["bearerToken"].as_str();
        assert_eq!(shown, (version > Version::V2_12).then_some(bearer.as_str()));

        let own = format!("{path}/{token}");
        assert_eq!(ask(&site.rancher, &bearer, &format!("GET {own}"), "").await.status, 200);
        let without = bearer.trim_start_matches("ext/");
        assert_eq!(ask(&site.rancher, without, &format!("GET {own}"), "").await.status, 401);
        let old = ask(&site.rancher, &key, &format!("GET /v3/tokens/{token}"), "").await;
        assert_eq!(old.status, 404);
        let admin = site.key(&site.admin);
        for (ttl, expected) in [(NINETY + 1, 400), (-1, 400), (60_000, 200)] {
            let body = json!({"spec": {"ttl": ttl}}).to_string();
            let answer = ask(&site.rancher, &admin, &format!("PUT {own}"), &body).await;
            assert_eq!(answer.status, expected, "{ttl}: {}", answer.text);
        }
        let minted = ask(&site.rancher, &bearer, "POST /v3/tokens", "{}").await;
        assert_eq!(minted.status, 201, "an ext token may mint");
        assert_eq!(ask(&site.rancher, &bearer, &format!("DELETE {own}"), "").await.status, 200);
        assert_eq!(ask(&site.rancher, &bearer, &format!("GET {path}"), "").await.status, 401);
        let body = json!({"spec": {"userID": site.other}}).to_string();
        let foreign = ask(&site.rancher, &key, &format!("POST {path}"), &body).await;
        assert_eq!(foreign.status, 400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ext_kubeconfigs_hold_the_tokens_of_their_time() {
    let path = "/apis/ext.cattle.io/v1/kubeconfigs";
    for (version, ext, most) in [
        (Version::V2_14, false, 30 * DAY),
        (Version::V2_15, true, 30 * DAY),
        (Version::Main, true, NINETY),
    ] {
        let site = Site::new(version).await;
        let key = site.key(&site.user);
        for (ttl, expected) in [(most / 1000 + 1, 400), (-1, 400), (most / 1000, 201), (0, 201)] {
            let body = json!({"spec": {"clusters": ["c-m-prod"], "ttl": ttl}}).to_string();
            let made = ask(&site.rancher, &key, &format!("POST {path}"), &body).await;
            assert_eq!(made.status, expected, "{version:?} {ttl}: {}", made.text);
            if expected == 201 {
                let text = made.body["status"]["value"].as_str().unwrap();
                assert_eq!(text.contains("token: \"ext/token-"), ext, "{version:?}");
                let token = made.body["status"]["tokens"][0].as_str().unwrap();
                let lives = if ttl == 0 { 30 * DAY } else { ttl * 1000 };
                assert_eq!(site.rancher.token(token).unwrap().ttl, lives);
                let own = format!("{path}/{}", made.body["metadata"]["name"].as_str().unwrap());
                let gone = ask(&site.rancher, &key, &format!("DELETE {own}"), "").await;
                assert_eq!((gone.status, site.rancher.token(token)), (200, None));
            }
        }
    }
}
