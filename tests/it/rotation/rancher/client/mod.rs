//! The operator's client for Rancher, against the stand-in: each call does what its name says, and
//! no answer, however odd, makes it reveal a token.

mod answers;
mod credentials;

use anyhow::{Context as _, Result, bail, ensure};
use harvester_guest_operator::domain::credentials::kubeconfig::ServerEndpoint;
use harvester_guest_operator::domain::credentials::secret_text::SecretText;
use harvester_guest_operator::rancher::{
    ListedToken, RancherError, RancherIssuer, ServerClient, TokenApi, TokenOrder, TokenRights,
};
use testbed::Verdict;
use testbed::rancher::{Role, Version};

const DAY: i64 = 86_400;

/// Stand-in for Rancher, with a user, the user's API key, and a client.
struct Site {
    there: testbed::Rancher,
    client: ServerClient,
    user: String,
    key: SecretText,
}

impl Site {
    async fn new(version: Version) -> Result<Self> {
        let there = testbed::Rancher::start(version).await?;
        let user = there.user(false);
        there.cluster("c-m-prod", "prod", &[&user]);
        let key = SecretText::new(there.api_key(&user, 0, "key"));
        let client = ServerClient::new(there.url(), Some(there.ca_pem()), None)
            .map_err(anyhow::Error::msg)?;
        Ok(Self { there, client, user, key })
    }

    /// Client for a cluster, at the URL that a consumer of the credential uses.
    fn cluster(&self, id: &str) -> Result<ServerClient> {
        let url = format!("{}/k8s/clusters/{id}", self.there.url());
        let cluster = self.client.cluster(&url, Some(self.there.ca_pem()), None);
        cluster.map_err(anyhow::Error::msg)
    }

    async fn find(&self, description: &str) -> Result<Vec<ListedToken>, RancherError> {
        let mut all = self.client.tokens(&self.key).await?.value.tokens;
        all.retain(|token| token.description == description);
        Ok(all)
    }

    fn credential(&self) -> Result<String> {
        let content = self.there.kubeconfig(&self.user, "c-m-prod");
        self.there.credential(&self.user, "prod", "c-m-prod", &content)
    }
}

fn order(description: &str) -> TokenOrder<'_> {
    TokenOrder { lifetime: 30 * DAY, description, cluster: None }
}

fn name(secret: &SecretText) -> &str {
    secret.reveal().split(':').next().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_made_found_read_and_revoked() -> Result<()> {
    for version in Version::ALL {
        for retired in [false, true] {
            if retired && version < Version::V2_12 {
                continue;
            }
            let site = Site::new(version).await?;
            if retired {
                site.there.retire_v3_tokens();
            }
            let api = if retired { TokenApi::Ext } else { TokenApi::V3 };
            ensure!(site.client.tokens(&site.key).await?.value.api == api, "{version:?}");
            let made = site.client.mint(&site.key, api, order("uid-1")).await?;
            let (date, made) = (made.date.context("no date")?, made.value);
            ensure!(site.there.accepts(made.secret.reveal()), "{version:?}");
            assert_eq!(made.token.name.starts_with("ext/"), retired, "{version:?}");
            assert_eq!(name(&made.secret), made.token.name);
            assert_eq!(made.token.expires, Some(made.token.created + 30 * DAY));
            assert!((date - made.token.created).abs() <= 60, "{date}");

            site.client.mint(&site.key, api, order("uid-2")).await?;
            let found = site.find("uid-1").await?;
            assert_eq!(found, std::slice::from_ref(&made.token));
            assert_eq!(site.find("uid-3").await?, []);

            // With the token itself and with the API key.
            for key in [&site.key, &made.secret] {
                let read = site.client.token(key, &made.token.name).await?;
                assert_eq!(read.value, Some(made.token.clone()));
            }
            let bearer = site.cluster("c-m-prod")?.bearer(&made.secret).await?;
            assert_eq!(bearer.user.as_ref(), Some(&site.user));

            assert!(site.client.revoke(&site.key, &made.token.name).await?);
            assert!(!site.client.revoke(&site.key, &made.token.name).await?, "it is gone");
            assert_eq!(site.client.token(&site.key, &made.token.name).await?.value, None);
            let dead = site.cluster("c-m-prod")?.bearer(&made.secret).await.err();
            assert!(matches!(dead, Some(RancherError::Unauthorized(_))), "{dead:?}");
            let dead = site.client.mint(&made.secret, api, order("x")).await.err();
            assert!(matches!(dead, Some(RancherError::Unauthorized(_))), "{dead:?}");
        }
    }
    Ok(())
}

/// The name must equal the whole description: another one's description may begin or end with it.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_token_by_that_name_is_revoked() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let issuer = RancherIssuer::new(site.there.url(), Some(site.there.ca_pem()), site.key.clone());
    let issuer = issuer.map_err(anyhow::Error::msg)?;
    for name in ["guest-1", "guest-10", "a-guest-1"] {
        issuer.mint(&issuer.issued().await?, name, 30 * DAY, None).await?;
    }
    issuer.revoke("guest-1").await?;
    for (name, left) in [("guest-1", 0), ("guest-10", 1), ("a-guest-1", 1)] {
        assert_eq!(site.find(name).await?.len(), left, "{name}");
    }
    Ok(())
}

/// ext.cattle.io shows an administrator the tokens of all users.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_others_are_neither_counted_nor_revoked_nor_sent_anywhere() -> Result<()> {
    for retired in [false, true] {
        let site = Site::new(Version::Main).await?;
        let admin = site.there.user(true);
        let key = if retired {
            site.there.retire_v3_tokens();
            site.there.ext_key(&admin, 0, "key")
        } else {
            site.there.api_key(&admin, 0, "key")
        };
        // Tokens of another user with the same description.
        let theirs = [
            site.there.api_key(&site.user, 0, "guest-1"),
            site.there.ext_key(&site.user, 0, "guest-1"),
        ];
        let issuer =
            RancherIssuer::new(site.there.url(), Some(site.there.ca_pem()), SecretText::new(key));
        let issuer = issuer.map_err(anyhow::Error::msg)?;
        issuer.mint(&issuer.issued().await?, "guest-1", DAY, None).await?;
        let known = issuer.issued().await?;
        assert_eq!(known.user, admin);
        assert!(known.tokens.iter().all(|token| token.user == admin), "{known:?}");
        assert_eq!(known.named("guest"), ["guest-1"]);
        for token in &theirs {
            let value = SecretText::trimmed(token.clone());
            let held = issuer.life(&value, &known).await?.held(&value, false);
            // The same API shows an administrator the ext tokens of other users.
            let is_shown = token.starts_with("ext/");
            assert_eq!(held.is_unseen, !is_shown, "{token}");
            let name = token.split(':').next().unwrap_or_default().trim_start_matches("ext/");
            let view = site.there.token(name).context("it is gone")?;
            assert_eq!(view.last_used, None, "it was sent somewhere");
        }
        // A token by the user's own name that is not listed any more is dead. No other one is.
        let dead = SecretText::trimmed(format!("kubeconfig-{admin}abcde:nothing"));
        let life = issuer.life(&dead, &known).await?;
        assert_eq!(life.alive, (!retired).then_some(false));
        let other = SecretText::trimmed(format!("kubeconfig-{}abcde:nothing", site.user));
        assert_eq!(issuer.life(&other, &known).await?.alive, None);
        issuer.revoke("guest-1").await?;
        assert_eq!(issuer.issued().await?.named("guest"), [""; 0]);
        for token in &theirs {
            ensure!(site.there.accepts(token), "another user's was revoked");
        }
    }
    Ok(())
}

/// Rights that Rancher's node driver needs, of a new token that is valid for the cluster only.
#[tokio::test(flavor = "multi_thread")]
async fn rights_of_a_token_are_enough_lacking_or_not_known() -> Result<()> {
    let site = Site::new(Version::V2_11).await?;
    let issuer = RancherIssuer::new(site.there.url(), Some(site.there.ca_pem()), site.key.clone());
    let issuer = issuer.map_err(anyhow::Error::msg)?;
    let reach = ServerEndpoint {
        server: format!("{}/k8s/clusters/c-m-prod", site.there.url()),
        authority: None,
        server_name: None,
        insecure: false,
    };
    let known = issuer.issued().await?;
    let (token, _) = issuer.mint(&known, "guest-1", DAY, Some("c-m-prod")).await?;
    let role = |writes, namespaces: &[&str]| {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        site.there.role("c-m-prod", &site.user, Role { writes, namespaces });
    };
    assert_eq!(issuer.rights(&token, &reach).await, Ok(TokenRights::Enough));
    role(true, &["kube-system", "team"]);
    assert_eq!(issuer.rights(&token, &reach).await, Ok(TokenRights::Enough));
    for namespaces in [&[][..], &["team"], &["none that there is"]] {
        role(namespaces == ["none that there is"], namespaces);
        let Ok(TokenRights::Lacking(why)) = issuer.rights(&token, &reach).await else {
            bail!("enough")
        };
        ensure!(why.contains("may not create virtualmachines.kubevirt.io"), "{why}");
    }
    for code in [403, 404, 503] {
        for path in ["/selfsubjectaccessreviews", "/v1/namespaces"] {
            role(false, &["team"]);
            site.there.set_rule(move |call| {
                let refusal = Verdict::Refuse { code, reason: "No", message: "no".to_owned() };
                if call.path.ends_with(path) { refusal } else { Verdict::Pass }
            });
            let rights = issuer.rights(&token, &reach).await;
            ensure!(matches!(rights, Ok(TokenRights::Unknown(_))), "{code} {path}: {rights:?}");
        }
    }
    site.there.clear_rule();
    site.there.agent("c-m-prod", false);
    let rights = issuer.rights(&token, &reach).await;
    ensure!(matches!(rights, Ok(TokenRights::Unknown(_))), "{rights:?}");
    // A token that is not accepted has none. It may be new, and not known to each replica yet.
    site.there.agent("c-m-prod", true);
    issuer.revoke("guest-1").await?;
    let rights = issuer.rights(&token, &reach).await;
    ensure!(rights.as_ref().is_err_and(|fault| fault.may_pass), "{rights:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_granted_lifetime_is_read_from_creation_and_expiry() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let lives = |lifetime| TokenOrder { lifetime, description: "", cluster: Some("c-m-prod") };
    for (max, asked, granted) in [
        ("129600", 30 * DAY, Some(30 * DAY)),
        ("129600", 365 * DAY, Some(90 * DAY)),
        ("129600", 0, Some(90 * DAY)),
        ("10", 30 * DAY, Some(600)),
        // Expired when issued, as Rancher returns it.
        ("0", -1, Some(-1)),
    ] {
        assert!(site.there.set("auth-token-max-ttl-minutes", max));
        let made = site.client.mint(&site.key, TokenApi::V3, lives(asked)).await?.value;
        let expected = granted.map(|life: i64| made.token.created + life.max(0));
        assert_eq!(made.token.expires, expected, "{max} {asked}");
        assert_eq!(made.token.cluster.as_deref(), Some("c-m-prod"));
        assert_eq!(site.there.accepts(made.secret.reveal()), asked >= 0);
    }
    // In the ext API a negative lifetime means no end, unless Rancher has a bound.
    site.there.retire_v3_tokens();
    assert!(site.there.set("auth-token-default-ttl-minutes", "0"));
    let made = site.client.mint(&site.key, TokenApi::Ext, lives(0)).await?.value;
    assert_eq!(made.token.expires, None);
    assert!(site.there.accepts(made.secret.reveal()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_review_tells_a_dead_token_on_the_way_to_a_cluster() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let stranger = site.there.user(false);
    let other = SecretText::new(site.there.api_key(&stranger, 0, ""));
    let dead = SecretText::new(site.there.api_key(&site.user, 0, ""));
    site.there.delete_token(name(&dead));
    let ask = async |cluster: &str, token: &SecretText| -> Result<_> {
        Ok(site.cluster(cluster)?.bearer(token).await)
    };
    let alive = ask("c-m-prod", &site.key).await??;
    assert_eq!(alive.token.as_deref(), Some(name(&site.key)));
    let none = SecretText::new(String::new());
    for (cluster, token) in [("c-m-prod", &dead), ("c-nope", &dead), ("c-m-prod", &none)] {
        let answer = ask(cluster, token).await?;
        assert!(matches!(answer, Err(RancherError::Unauthorized(_))), "{cluster}: {answer:?}");
    }
    let refused = ask("c-m-prod", &other).await?;
    assert!(
        matches!(&refused, Err(RancherError::Forbidden(_, why)) if why.contains(&stranger)),
        "{refused:?}"
    );
    site.there.agent("c-m-prod", false);
    let away = ask("c-m-prod", &site.key).await?;
    assert!(matches!(away, Err(RancherError::Refused { status: 503, .. })), "{away:?}");

    let trust = Some(site.there.ca_pem());
    for url in ["https://127.0.0.1:1/k8s/clusters/c-m-prod", site.there.url(), "http://127.0.0.1"] {
        assert!(site.client.cluster(url, trust, None).is_err(), "{url}");
    }
    Ok(())
}
