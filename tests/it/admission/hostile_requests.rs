//! Hostile requests to admission: each asks for as much CPU time or memory as one request can. The
//! benchmark sends them too, to the program that is optimized.

use serde_json::json;

pub(crate) const MUTATION: &str = "/v1/webhook/mutation";
pub(crate) const VALIDATION: &str = "/v1/webhook/validation";
pub(crate) const CONVERSION: &str = "/v1/webhook/conversion";
pub(crate) const GROUP: &str = "loadbalancer.harvesterhci.io";

/// A conversion review with objects as text.
pub(crate) fn conversion(objects: &str) -> String {
    format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{{"uid":"u-1","desiredAPIVersion":"{GROUP}/v1alpha1","objects":{objects}}}}}"#
    )
}

/// Text of one object, with additional fields.
fn object(more: &str) -> String {
    format!(r#"{{"apiVersion":"{GROUP}/v1beta1","kind":"LoadBalancer","metadata":{{}},{more}}}"#)
}

/// An admission review of an object given as text.
pub(crate) fn review(plural: &str, object: &str) -> String {
    update(plural, object, r#"{"metadata":{"name":"web"},"spec":{},"status":{}}"#)
}

/// An admission review of a new and a stored object, both given as text.
fn update(plural: &str, object: &str, old: &str) -> String {
    let asked = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u-1", "operation": "UPDATE", "name": "web", "namespace": "default",
            "resource": {"group": GROUP, "version": "v1beta1", "resource": plural},
            "userInfo": {"username": "eve"},
            "object": "NEW", "oldObject": "OLD",
        },
    });
    asked.to_string().replace("\"NEW\"", object).replace("\"OLD\"", old)
}

pub(crate) fn repeated(count: usize, text: impl Fn(usize) -> String) -> String {
    let all: Vec<String> = (0..count).map(text).collect();
    all.join(",")
}

/// Hostile requests: name, path, body, and expected code.
#[rustfmt::skip]
pub(crate) fn hostile() -> Vec<(&'static str, &'static str, String, u16)> {
    let zeros = |count: usize| format!("[{}0]", "0,".repeat(count));
    let deep = |inner: &str| format!("{}{inner}{}", "{\"a\":".repeat(100), "}".repeat(100));
    let travels = json!({"spec": {"x": vec![0; 120_000]}}).to_string();
    let travels = json!({format!("{GROUP}/v1alpha1-fields"): travels, format!("{GROUP}/v1beta1-fields"): travels});
    let traveling =
        format!(r#"{{"metadata":{{"name":"web","annotations":{travels}}},"spec":{{}},"status":{{}}}}"#);
    let cut = json!({"cut": vec!["spec.x"; 26_000]}).to_string();
    let cut = json!({format!("{GROUP}/v1beta1-fields"): cut});
    let cut = format!(r#"{{"metadata":{{"name":"web","annotations":{cut}}},"spec":{{}},"status":{{}}}}"#);
    let pool = |spec: String| format!(r#"{{"metadata":{{"name":"web"}},"spec":{{{spec}}}}}"#);
    let balancer = |spec: String| format!(r#"{{"metadata":{{"name":"web"}},"spec":{{{spec}}}}}"#);
    let range = |n: usize| format!(r#"{{"subnet":"10.{}.{}.{}/32"}}"#, n >> 16, (n >> 8) & 255, n & 255);
    let listeners = repeated(14_000, |n| format!(r#"{{"name":"n{n}","port":{},"protocol":"TCP"}}"#, n + 1));
    let fields = |count: usize| repeated(count, |n| format!(r#""{n:x}":0"#));
    let large_quotes = "\\\"".repeat(120_000);
    let long = "x".repeat(1 << 20);
    let named = |fields: &str| format!(r#"{{"metadata":{{"name":"web"}},"spec":{{}},"status":{{"{long}":{{{fields}}}}}}}"#);
    let growing = object(&format!(r#""spec":{{"workloadType":"{large_quotes}"}}"#));
    vec![
        ("numbers", CONVERSION, conversion(&format!("[{}]", object(&format!(r#""spec":{{"x":{}}}"#, zeros(4_000_000))))), 200),
        ("numbers in a small object", CONVERSION, conversion(&format!("[{}]", object(&format!(r#""spec":{{"x":{}}}"#, zeros(1_500_000))))), 200),
        ("numbers for objects", CONVERSION, conversion(&zeros(4_000_000)), 200),
        ("fields", CONVERSION, conversion(&format!("[{}]", object(&format!(r#""spec":{{{}}}"#, fields(50_000))))), 200),
        ("many of these", CONVERSION, conversion(&format!("[{}]", repeated(8, |_| object(&format!(r#""spec":{{{}}}"#, fields(50_000)))))), 200),
        ("listeners that grow", CONVERSION, conversion(&format!("[{}]", repeated(14, |_| object(&format!(r#""spec":{{"listeners":[{}{{}}]}}"#, "{},".repeat(100_000)))))), 200),
        ("text that grows", CONVERSION, conversion(&format!("[{}]", repeated(34, |_| growing.clone()))), 200),
        ("the smallest objects", CONVERSION, conversion(&format!("[{}]", repeated(100_000, |_| format!(r#"{{"apiVersion":"{GROUP}/v1beta1","metadata":{{}}}}"#)))), 200),
        ("what travels", CONVERSION, conversion(&format!("[{}]", repeated(17, |_| format!(r#"{{"apiVersion":"{GROUP}/v1beta1","metadata":{{"annotations":{travels}}}}}"#)))), 200),
        ("a conversion too large", CONVERSION, " ".repeat((8 << 20) + 1), 413),
        ("a large review", VALIDATION, review("loadbalancers", &balancer(format!(r#""x":{}"#, zeros(4_000_000)))), 200),
        ("a review too large", VALIDATION, " ".repeat((8 << 20) + 1), 413),
        ("listeners", VALIDATION, review("loadbalancers", &balancer(format!(r#""listeners":[{listeners}]"#))), 200),
        ("listeners that are text", MUTATION, review("loadbalancers", &balancer(format!(r#""listeners":[{}{{}}]"#, r#"{"port":"http"},"#.repeat(14_000)))), 200),
        ("ranges", VALIDATION, review("ippools", &pool(format!(r#""ranges":[{}]"#, repeated(14_000, range)))), 200),
        ("ranges that are empty", MUTATION, review("ippools", &pool(format!(r#""ranges":[{}{{}}]"#, "{},".repeat(14_000)))), 200),
        ("scopes", VALIDATION, review("ippools", &pool(format!(r#""ranges":[{{"subnet":"10.0.0.0/24"}}],"selector":{{"scope":[{}{{}}]}}"#, r#"{"namespace":"x"},"#.repeat(14_000)))), 200),
        ("holes", VALIDATION, review("ippools", &pool(format!(r#""ranges":[{{"subnet":"10.0.0.0/8","exclude":[{}]}}]"#, repeated(200_000, |n| format!(r#""10.{}.{}.{}""#, n >> 16, (n >> 8) & 255, n & 0xfe))))), 200),
        ("a deep status", VALIDATION, review("loadbalancers", &format!(r#"{{"metadata":{{}},"spec":{{}},"status":{}}}"#, deep(&zeros(90_000)))), 200),
        ("a long name that is restored", MUTATION, update("loadbalancers", &named(r#""k":0"#), &named(&fields(200))), 200),
        ("a long name that is compared", VALIDATION, update("loadbalancers", &named(&format!(r#"{},"z":0"#, fields(10_000))), &named(&format!(r#"{},"z":1"#, fields(10_000)))), 200),
        ("what is cut", VALIDATION, review("loadbalancers", &cut), 200),
        ("what travels, judged", VALIDATION, review("loadbalancers", &traveling), 200),
    ]
}
