//! Cloud credentials: their list, and the Secret that holds one.

use anyhow::{Context as _, Result};
use harvester_guest_operator::domain::credentials::secret_text::SecretText;
use harvester_guest_operator::rancher::RancherError;
use serde_json::json;
use testbed::eventually;
use testbed::rancher::Version;

use super::Site;
use crate::support::SOON;

#[tokio::test(flavor = "multi_thread")]
async fn a_credentials_content_is_written_as_it_was_read_or_not_at_all() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let cc = site.credential()?;
    let owned = async || {
        site.there.secret(&cc).is_some_and(|secret| {
            secret["metadata"]["annotations"]["management.cattle.io/harvester-token-checksum"]
                .is_string()
        })
    };
    eventually(SOON, "reconcile by the controller", owned).await?;
    let was = site.client.stored(&site.key, &cc).await?.value.context("not there")?;
    let content = was.content.as_ref().context("no content")?;
    assert_eq!(content.reveal(), site.there.content(&cc));
    assert_eq!(was.annotations["field.cattle.io/creatorId"], site.user);

    // The final newline must survive a patch, and so must a letter that JSON would escape.
    let next = SecretText::new(format!("{}\n# \"ü\"\n", content.reveal()));
    let now = site.client.write(&site.key, &cc, &was, &next, None).await?;
    assert_ne!(now.version, was.version);
    assert_eq!(now.content.as_ref().context("no content")?.reveal(), next.reveal());
    assert_eq!(site.there.content(&cc), next.reveal());
    assert_eq!(now.annotations["field.cattle.io/name"], "prod", "the rest is unchanged");
    let late = site.client.write(&site.key, &cc, &was, &next, None).await.err();
    assert!(matches!(late, Some(RancherError::Conflict(_))), "{late:?}");

    assert!(site.client.stored(&site.key, "cc-nope").await.is_err(), "403: it may not ask");
    let admin = SecretText::new(site.there.api_key(&site.there.user(true), 0, ""));
    assert!(site.client.stored(&admin, "cc-nope").await?.value.is_none());
    assert!(site.client.stored(&admin, "../secrets").await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_without_annotations_is_never_written() -> Result<()> {
    // Before 2.12, so that the client, not the server, ends the call first.
    let site = Site::new(Version::V2_8).await?;
    let cc = site.credential()?;
    site.there.edit_secret(&cc, |secret| secret["metadata"]["annotations"] = json!({}));
    let admin = SecretText::new(site.there.api_key(&site.there.user(true), 0, ""));
    let was = site.client.stored(&admin, &cc).await?.value.context("not there")?;
    site.there.reset();
    let refused =
        site.client.write(&admin, &cc, &was, &SecretText::new("x".to_owned()), None).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("has no annotations")));
    assert!(site.there.calls().is_empty(), "nothing was sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_are_listed_as_the_user_may_see_them() -> Result<()> {
    let site = Site::new(Version::Main).await?;
    let cc = site.credential()?;
    // A credential of another driver is not one for Harvester.
    let annotations =
        json!({"field.cattle.io/creatorId": site.user, "field.cattle.io/name": "aws"});
    site.there.edit_secret("cc-other", |secret| {
        secret["metadata"]["annotations"] = annotations;
        secret["data"] = json!({"amazonec2credentialConfig-accessKey": "a2V5"});
    });
    let other = site.there.user(false);
    for (user, expected) in [(&site.user, 1), (&other, 0), (&site.there.user(true), 1)] {
        let key = SecretText::new(site.there.api_key(user, 0, ""));
        let listed = site.client.credentials(&key).await?;
        assert_eq!(listed.len(), expected);
        for one in listed {
            assert_eq!(
                (one.name, one.title, one.owner),
                (cc.clone(), "prod".into(), site.user.clone())
            );
        }
    }
    // A list that was cut off would omit some.
    site.there.list_at_most(1);
    let cut = site.client.credentials(&site.key).await.err().context("it is cut off")?;
    assert!(
        matches!(&cut, RancherError::Unreadable(_, why) if why.contains("lists at once")),
        "{cut}"
    );
    Ok(())
}
