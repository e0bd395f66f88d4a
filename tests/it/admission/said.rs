//! Complete answers of the API server: warnings too, which no typed client returns.

use anyhow::{Result, ensure};
use http_body_util::BodyExt as _;
use kube::Client;
use serde_json::{Value, json};

/// Answer of the API server.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

impl Said {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn accepted(&self) -> bool {
        self.code < 300
    }

    /// Checks that it is accepted without a warning.
    pub(crate) fn silent(&self) -> Result<()> {
        ensure!(self.accepted() && self.warnings.is_empty(), "{self:?}");
        Ok(())
    }

    /// Checks that it is accepted with this warning.
    pub(crate) fn warned(&self, text: &str) -> Result<()> {
        let warned = self.warnings.iter().any(|warning| warning.contains(text));
        ensure!(self.accepted() && warned, "no {text:?}: {self:?}");
        Ok(())
    }

    /// Checks that admission refuses it: field and part of the message.
    pub(crate) fn refused_by_webhook(&self, field: &str, text: &str) -> Result<()> {
        let causes = self.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let is = |cause: &Value| {
            let is_said = cause["message"].as_str().unwrap_or_default();
            cause["field"].as_str().unwrap_or_default() == field && is_said.contains(text)
        };
        let fits = self.by_webhook() && causes.iter().any(is);
        ensure!(fits, "no {field}: {text:?}: {self:?}");
        Ok(())
    }

    /// Checks that the schema refuses it, before any webhook.
    pub(crate) fn refused_by_schema(&self, text: &str) -> Result<()> {
        let is_said = self.message().contains(text);
        ensure!(self.code == 422 && is_said && !self.by_webhook(), "no {text:?}: {self:?}");
        Ok(())
    }

    fn by_webhook(&self) -> bool {
        self.message().contains("admission webhook")
    }
}

/// Sends an object, and returns the complete answer.
pub(crate) async fn ask(client: &Client, method: &str, path: &str, body: &Value) -> Result<Said> {
    let type_ = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    send(client, method, path, &[("content-type", type_)], body).await
}

pub(crate) async fn send(
    client: &Client,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Result<Said> {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = kube::client::Body::from(serde_json::to_vec(body)?);
    let response = client.send(request.body(body)?).await?;
    let code = response.status().as_u16();
    let text = |header: &http::HeaderValue| {
        let (_, quoted) = header.to_str().ok()?.split_once('"')?;
        Some(quoted.strip_suffix('"')?.replace("\\\"", "\""))
    };
    let warnings = response.headers().get_all("warning").iter().filter_map(text).collect();
    let bytes = response.into_body().collect().await?.to_bytes();
    let body = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| json!({"message": String::from_utf8_lossy(&bytes)}));
    Ok(Said { code, body, warnings })
}
