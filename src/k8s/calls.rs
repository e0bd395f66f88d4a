//! Calls to the API server: each has a deadline, and its error names the call.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ObjectList;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::paging::{PAGE_DEADLINE, TRIES};
use super::{CALL_DEADLINE, CallError, PAGE};

/// An error of kube's client, with the name of the call that caused the error: for most calls, the
/// HTTP method and the path of the request.
#[derive(Debug)]
pub struct FailedCall {
    pub(super) call: String,
    /// The error of kube's client.
    pub error: kube::Error,
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.error)
    }
}

impl Error for FailedCall {
    /// The second error in the chain of causes of `self.error`. The first is skipped, because the
    /// text of `kube::Error` already contains the text of the first error.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()?.source()
    }
}

/// Runs one call to the API server. The call fails with [`CallError::Timeout`] after `deadline`.
/// The function `name` makes the name of the call. `name` runs only if the call fails.
pub(crate) async fn run_call<T>(
    deadline: Duration,
    name: impl FnOnce() -> String,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, CallError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(CallError::new(name(), error)),
        Err(_) => Err(CallError::Timeout { call: name(), within: deadline }),
    }
}

/// Parameters of a conditional deletion. The deletion fails with a conflict unless the object has
/// the UID `uid` and the resourceVersion `version`. A parameter that is `None` sets no condition.
pub(super) fn only_if(uid: Option<&str>, version: Option<&str>) -> DeleteParams {
    let (uid, resource_version) = (uid.map(str::to_owned), version.map(str::to_owned));
    DeleteParams::default().preconditions(Preconditions { uid, resource_version })
}

/// Reads of the objects of one kind. If `K` is a `PartialObjectMeta`, only metadata is read. Each
/// method whose name begins with `call_` sends one request, except that [`Self::call_list`] may
/// request a page again.
pub(crate) trait ApiCalls<K: Resource + Clone + DeserializeOwned + fmt::Debug> {
    /// Client for the objects of the kind.
    fn api(&self) -> &Api<K>;

    /// Deadline of each call. Pages of lists have other deadlines: [`Self::call_list`].
    fn deadline(&self) -> Duration;

    /// Client for the same objects, with the deadline `deadline` for each call.
    fn within(&self, deadline: Duration) -> TimedApi<'_, K> {
        TimedApi { api: self.api(), deadline }
    }

    /// Name of a call about the object `name`, or about a part of that object, such as
    /// `web/status`.
    fn name_call(&self, method: &str, name: &str) -> String {
        format!("{method} {}/{name}", self.api().resource_url())
    }

    async fn call_get(&self, name: &str) -> Result<K, CallError> {
        run_call(self.deadline(), || self.name_call("GET", name), self.api().get(name)).await
    }

    /// Reads the object `name`. `None`: the API server answered that the object does not exist. Any
    /// other 404 is an error, for example if a proxy sends it, or if the kind is not served.
    async fn call_get_opt(&self, name: &str) -> Result<Option<K>, CallError> {
        run_call(self.deadline(), || self.name_call("GET", name), self.api().get_opt(name)).await
    }

    /// Reads the object `name` of a kind that the cluster may not have. `None`: the object does not
    /// exist, or its kind is not served (any 404).
    async fn call_get_if_served(&self, name: &str) -> Result<Option<K>, CallError> {
        match self.call_get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(CallError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a list. Without a limit in `params`: the whole list, with the deadline
    /// [`Self::deadline`].
    ///
    /// With a limit: one page. [`super::paging`] may request it again with fewer objects, for
    /// example if it is late. The deadlines are:
    /// * One try: [`Self::deadline`] or [`CALL_DEADLINE`], whichever is shorter. A try that
    ///   requests a single object has no deadline of its own, because it cannot be made smaller.
    /// * All tries together: [`Self::deadline`], or [`TRIES`] times the deadline of one try,
    ///   whichever is longer.
    async fn call_list(&self, params: &ListParams) -> Result<ObjectList<K>, CallError> {
        let name = || format!("GET {}", self.api().resource_url());
        let deadline = self.deadline();
        let page = deadline.min(CALL_DEADLINE);
        let whole = if params.limit.is_some() { deadline.max(page * TRIES) } else { deadline };
        run_call(whole, name, PAGE_DEADLINE.scope(page, self.api().list(params))).await
    }

    /// Reads a consistent list page by page, with one call for each page. Calls `take` for each
    /// object.
    async fn list_each(&self, mut take: impl FnMut(K)) -> Result<(), CallError> {
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let page = self.call_list(&params).await?;
            page.items.into_iter().for_each(&mut take);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
    }
}

/// Writes of the objects of one kind. Each method sends one call. Patches are merge patches.
pub(super) trait ApiWrites<K: Resource + Clone + DeserializeOwned + fmt::Debug>:
    ApiCalls<K>
{
    async fn call_create(&self, object: &K) -> Result<K, CallError>
    where
        K: Serialize,
    {
        let name = || format!("POST {}", self.api().resource_url());
        let params = PostParams::default();
        let call = self.api().create(&params, object);
        run_call(self.deadline(), name, call).await
    }

    async fn call_replace(&self, name: &str, object: &K) -> Result<K, CallError>
    where
        K: Serialize,
    {
        let params = PostParams::default();
        let call = self.api().replace(name, &params, object);
        run_call(self.deadline(), || self.name_call("PUT", name), call).await
    }

    async fn call_patch(
        &self,
        name: &str,
        patch: &(impl Serialize + fmt::Debug),
    ) -> Result<K, CallError> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = self.api().patch(name, &params, &patch);
        run_call(self.deadline(), || self.name_call("PATCH", name), call).await
    }

    async fn call_patch_status(
        &self,
        name: &str,
        patch: &(impl Serialize + fmt::Debug),
    ) -> Result<K, CallError> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let call = self.api().patch_status(name, &params, &patch);
        let of = || self.name_call("PATCH", &format!("{name}/status"));
        run_call(self.deadline(), of, call).await
    }

    /// Deletes the object `name`. Returns the object from the server's answer. `None`: the answer
    /// does not contain the object.
    async fn call_delete(&self, name: &str, params: &DeleteParams) -> Result<Option<K>, CallError> {
        let call = self.api().delete(name, params);
        let answer = run_call(self.deadline(), || self.name_call("DELETE", name), call).await?;
        Ok(answer.left())
    }
}

impl<K: Resource + Clone + DeserializeOwned + fmt::Debug> ApiCalls<K> for Api<K> {
    fn api(&self) -> &Api<K> {
        self
    }

    fn deadline(&self) -> Duration {
        CALL_DEADLINE
    }
}

/// Client for the objects of a kind, with a deadline other than [`CALL_DEADLINE`].
pub(crate) struct TimedApi<'a, K> {
    api: &'a Api<K>,
    deadline: Duration,
}

impl<K: Resource + Clone + DeserializeOwned + fmt::Debug> ApiCalls<K> for TimedApi<'_, K> {
    fn api(&self) -> &Api<K> {
        self.api
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }
}

impl<K: Resource + Clone + DeserializeOwned + fmt::Debug, A: ApiCalls<K>> ApiWrites<K> for A {}
