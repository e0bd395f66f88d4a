//! Tests of the condition of an API key.

use super::super::status;
use super::*;
use api::{TokenRotation, TokenRotationSpec};

const DAY: Seconds = 86_400;

fn plan() -> RotationPlan {
    let spec = serde_json::json!({"target": {"allCloudCredentials": {}}});
    let spec: TokenRotationSpec = serde_json::from_value(spec).unwrap();
    status::plan(&TokenRotation::new("all", spec))
}

fn key(issued: Option<Seconds>, expires: Option<Seconds>, renewed: bool) -> ApiKey {
    ApiKey {
        name: "token-abcde".into(),
        issued_at: issued.map(rfc3339),
        expires_at: expires.map(rfc3339),
        renewed,
    }
}

#[test]
fn an_api_key_without_renewal_is_reported_in_time() {
    for (key, now, said) in [
        (key(Some(0), Some(90 * DAY), false), 83 * DAY - 1, "TimeLeft"),
        (key(Some(0), Some(90 * DAY), false), 83 * DAY, "NotRenewed"),
        (key(Some(0), Some(90 * DAY), true), 89 * DAY, "Renewed"),
        (key(Some(0), Some(90 * DAY), true), 90 * DAY, "Expired"),
        (key(Some(0), Some(90 * DAY), false), 90 * DAY, "Expired"),
        // The key's lifetime is one day, so the report begins after half a day.
        (key(Some(0), Some(DAY), false), DAY / 2 - 1, "TimeLeft"),
        (key(Some(0), Some(DAY), false), DAY / 2, "NotRenewed"),
        (key(None, Some(90 * DAY), false), 83 * DAY, "NotRenewed"),
        (key(Some(0), None, false), 999 * DAY, "NoEnd"),
    ] {
        let (holds, reason, message) = minter_condition(&plan(), &key, false, now);
        assert_eq!(reason, said, "{key:?} {now}");
        assert_eq!(holds == True, ["NotRenewed", "Expired"].contains(&reason));
        assert_eq!(message.contains("token-abcde"), holds == True, "{message}");
        let (holds, reason, _) = minter_condition(&plan(), &key, true, now);
        assert_eq!((holds, reason), (True, "NotAccepted"), "whatever its time");
    }
}
