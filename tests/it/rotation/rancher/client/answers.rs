//! Answers that are lost, odd, missing or of another server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harvester_guest_operator::rancher::{RancherError, ServerClient, TokenApi};
use testbed::Verdict;
use testbed::rancher::Version;

use super::{Site, order};
use crate::support::SOON;

/// Rancher alone can report that a token, a Secret or an API does not exist; an ingress in front of it
/// cannot. The aggregated API may be absent while it is not needed.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_known_is_not_taken_for_none() -> Result<()> {
    let site = Site::new(Version::V2_14).await?;
    let made = site.client.mint(&site.key, TokenApi::V3, order("uid-1")).await?.value.token;
    let credential = site.credential()?;
    for code in [404, 502, 503] {
        site.there.set_rule(move |_| Verdict::Page(code));
        let answers = [
            site.client.tokens(&site.key).await.map(drop),
            site.client.token(&site.key, &made.name).await.map(drop),
            site.client.revoke(&site.key, &made.name).await.map(drop),
            site.client.stored(&site.key, &credential).await.map(drop),
            site.client.credentials(&site.key).await.map(drop),
            site.cluster("c-m-prod")?.bearer(&site.key).await.map(drop),
        ];
        for answer in answers {
            let error = answer.err().context("an HTML page passed as an answer")?;
            ensure!(
                matches!(error, RancherError::Refused { status, .. } if status == code),
                "{error:?}"
            );
        }
    }
    site.there.clear_rule();
    site.there.ext_is_down(true);
    assert_eq!(site.find("uid-1").await?, [made]);
    site.there.retire_v3_tokens();
    let error = site.client.tokens(&site.key).await.err().context("there is no list")?;
    ensure!(matches!(error, RancherError::Refused { status: 503, .. }), "{error:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_leaves_a_token_that_is_found() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    site.there.set_rule(|call| match call.method.as_str() {
        "POST" => Verdict::CutAfter,
        _ => Verdict::Pass,
    });
    let lost = site
        .client
        .mint(&site.key, TokenApi::V3, order("uid-1"))
        .await
        .err()
        .context("answered")?;
    assert!(lost.may_pass(), "{lost}");
    let found = site.find("uid-1").await?;
    assert_eq!(found.len(), 1, "sent once: {:?}", site.there.calls());
    site.there.set_rule(|call| match call.method.as_str() {
        "POST" => Verdict::Refuse { code: 500, reason: "ServerError", message: "no".to_owned() },
        _ => Verdict::Pass,
    });
    let failed = site
        .client
        .mint(&site.key, TokenApi::V3, order("uid-1"))
        .await
        .err()
        .context("answered")?;
    assert!(
        matches!(&failed, RancherError::Refused { status: 500, message, .. } if message == "no")
    );
    assert_eq!(failed.to_string(), "POST /v3/tokens: HTTP 500: no");
    assert!(failed.may_pass());
    assert_eq!(site.find("uid-1").await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_server_receives_nothing() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let other = testbed::Authority::new("other")?;
    let other = other.pem();
    // The system's authorities do not include the test's.
    for trust in [Some(other.as_str()), None] {
        let Ok(client) = ServerClient::new(site.there.url(), trust, None) else { continue };
        let error = client
            .mint(&site.key, TokenApi::V3, order("x"))
            .await
            .err()
            .context("it was trusted")?;
        assert!(
            matches!(&error, RancherError::Silent(_, why) if why.contains("certificate")),
            "{error}"
        );
    }
    assert!(site.there.calls().is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_answers_are_bounded_and_give_nothing_away() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let echo = format!("your token {} is bad", site.key.reveal());
    let refuse = |code, message: String| {
        site.there.set_rule(move |_| Verdict::Refuse {
            code,
            reason: "Odd",
            message: message.clone(),
        });
    };
    let mut said = Vec::new();
    for code in [200, 201, 302, 307, 400, 403, 404, 409, 422, 500, 503] {
        refuse(code, echo.clone());
        let results = [
            site.client.mint(&site.key, TokenApi::V3, order("x")).await.map(drop),
            site.client.tokens(&site.key).await.map(drop),
            site.client.token(&site.key, "token-abcde").await.map(drop),
            site.client.stored(&site.key, "cc-abcde").await.map(drop),
            site.client.credentials(&site.key).await.map(drop),
            site.cluster("c-m-prod")?.bearer(&site.key).await.map(drop),
        ];
        said.extend(results.into_iter().filter_map(Result::err).map(|e| format!("{e} {e:?}")));
    }
    assert!(said.len() > 50, "{said:?}");
    assert!(said.iter().any(|text| text.contains("follows no redirect")));
    assert!(said.iter().any(|text| text.contains("not understood")));
    refuse(500, "x".repeat(9 << 20));
    let long =
        site.client.mint(&site.key, TokenApi::V3, order("x")).await.err().context("it was read")?;
    assert!(matches!(long, RancherError::Unreadable(..)), "{long}");
    site.there.clear_rule();

    let made = site.client.mint(&site.key, TokenApi::V3, order("x")).await?;
    said.push(format!("{made:?} {:?} {:?}", site.key, site.client));
    let stored = site.client.stored(&site.key, &site.credential()?).await?;
    said.push(format!("{stored:?}"));
    let secrets = [site.key.reveal(), made.value.secret.reveal()];
    for text in &said {
        for secret in secrets.iter().filter_map(|secret| secret.split(':').next_back()) {
            assert!(!text.contains(&secret[..12]), "a token was revealed");
        }
        assert!(!text.contains("apiVersion"), "a content was revealed");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_is_not_waited_for_without_end() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    site.there.stop();
    let down =
        site.client.mint(&site.key, TokenApi::V3, order("x")).await.err().context("it is down")?;
    assert!(matches!(down, RancherError::Silent(..)), "{down}");
    site.there.restart();
    site.there.set_rule(|_| Verdict::Hang);
    let hung =
        tokio::time::timeout(SOON, site.client.mint(&site.key, TokenApi::V3, order("x"))).await?;
    let hung = hung.err().context("it hangs")?;
    assert!(matches!(&hung, RancherError::Silent(_, why) if why.contains("not within")), "{hung}");
    site.there.set_rule(|_| Verdict::Delay(Duration::from_millis(500)));
    site.client.mint(&site.key, TokenApi::V3, order("x")).await?;
    Ok(())
}
