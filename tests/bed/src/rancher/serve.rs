//! Owns the connections of the stand-in, the faults that a test sets, and the task of its
//! controller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, DATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

use super::answer::{Answer, Body, kubernetes, norman, page};
use super::credentials::Stuck;
use super::world::{World, http_date};
use crate::proxy::{Call, Journal, Verdict};

const LONGEST_BODY: usize = 4 << 20;
/// Delays of the controller after a change, in turn: 30 to 90 ms, as observed.
const RECONCILE_DELAYS: [Duration; 3] =
    [Duration::from_millis(30), Duration::from_millis(60), Duration::from_millis(90)];
/// Delay of the controller after a failure; doubled after each further one.
const AGAIN: Duration = Duration::from_millis(100);
const LONGEST_AGAIN: Duration = Duration::from_secs(5);

pub(super) type Rule = Arc<dyn Fn(&Call) -> Verdict + Send + Sync>;

/// State shared by all connections.
pub(super) struct Shared {
    world: Mutex<World>,
    pub(super) rule: watch::Sender<Option<Rule>>,
    pub(super) journal: Journal,
    /// Whether the server is down, after a crash or by a test. Connections are closed then.
    pub(super) down: watch::Sender<bool>,
    /// Wakes the controller.
    work: Notify,
}

impl Shared {
    pub(super) fn new(world: World) -> Self {
        Self {
            world: Mutex::new(world),
            rule: watch::channel(None).0,
            journal: Journal::default(),
            down: watch::channel(false).0,
            work: Notify::new(),
        }
    }

    /// Applies a function to the state, and wakes the controller if a credential changed.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.lock();
        let done = act(&mut world);
        if world.crashed {
            self.down.send_replace(true);
        }
        if !world.changed.is_empty() {
            self.work.notify_one();
        }
        done
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        // A test's closure may panic under the lock; the state is complete all the same.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves one client until it goes or the server is down.
pub(super) async fn client(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let mut down = shared.down.subscribe();
    let _ = stream.set_nodelay(true);
    let serve = async {
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let service = service_fn(|request| handle(request, &shared));
        // An error comes from the client or from a requested cut.
        let _ = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    };
    tokio::select! {
        biased;
        _ = down.wait_for(|down| *down) => {}
        () = serve => {}
    }
}

/// Answers a call, or fails, which closes the client's connection without an answer.
async fn handle(request: Request<Incoming>, shared: &Shared) -> Result<Response<Full<Bytes>>> {
    let call = Call::of(&request);
    let entry = shared.journal.add(call.clone());
    let request = read(request).await?;
    let mut rules = shared.rule.subscribe();
    let rule = rules.borrow_and_update().clone();
    let verdict = rule.map_or(Verdict::Pass, |rule| rule(&call));
    match verdict {
        Verdict::Pass | Verdict::CutAfter => {}
        Verdict::Delay(time) => sleep(time).await,
        Verdict::Refuse { code, reason, message } => {
            shared.journal.answered(entry, code);
            let refusal = if call.path.starts_with("/v3") {
                norman(code, reason, &message)
            } else {
                kubernetes(code, reason, &message)
            };
            return response(refusal, shared.with(|world| world.now()));
        }
        Verdict::Page(code) => {
            shared.journal.answered(entry, code);
            return response(page(code), shared.with(|world| world.now()));
        }
        Verdict::Answer { code, body } => {
            shared.journal.answered(entry, code);
            let authorization = request.authorization.unwrap_or_default();
            let body = super::answer::Body::Text(body.replace("$AUTHORIZATION", &authorization));
            let answer = Answer { status: code, body, unauthenticated: false };
            return response(answer, shared.with(|world| world.now()));
        }
        Verdict::CutBefore => bail!("cut before the server"),
        Verdict::Hang => {
            let _ = rules.changed().await;
            bail!("cut after hanging");
        }
    }
    shared.journal.forwarded(entry);
    let (answer, now) = shared.with(|world| (world.answer(&request), world.now()));
    shared.journal.answered(entry, answer.status);
    ensure!(!matches!(verdict, Verdict::CutAfter), "cut after the server");
    response(answer, now)
}

async fn read(request: Request<Incoming>) -> Result<super::answer::Request> {
    let (head, body) = request.into_parts();
    let header = |name| {
        head.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let body = match Limited::new(body, LONGEST_BODY).collect().await {
        Ok(body) => body.to_bytes().to_vec(),
        Err(error) => bail!("read a request: {error}"),
    };
    let parts = head.uri.path().split('/').filter(|part| !part.is_empty());
    Ok(super::answer::Request {
        method: head.method.to_string(),
        path: parts.map(|part| part.replace("%3A", ":")).collect(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        authorization: header(AUTHORIZATION),
        content_type: header(CONTENT_TYPE).unwrap_or_default(),
        body,
    })
}

fn response(answer: Answer, now: i64) -> Result<Response<Full<Bytes>>> {
    let mut response = Response::builder().status(answer.status).header(DATE, http_date(now));
    if answer.unauthenticated {
        response = response.header("X-Api-Cattle-Auth", "false");
    }
    let (kind, body) = match answer.body {
        Body::Empty => return Ok(response.body(Full::default())?),
        Body::Text(text) => ("text/plain", text),
        Body::Json(Value::Null) => ("application/json", String::new()),
        Body::Json(value) => ("application/json", value.to_string()),
    };
    Ok(response.header(CONTENT_TYPE, kind).body(Full::new(Bytes::from(body)))?)
}

/// Runs the controller of cloud credentials. It ends when it is aborted.
pub(super) async fn controller(shared: Arc<Shared>) {
    let mut again = AGAIN;
    for look in RECONCILE_DELAYS.into_iter().cycle() {
        if shared.lock().changed.is_empty() {
            shared.work.notified().await;
        }
        sleep(look).await;
        let mut stuck = Vec::new();
        shared.with(|world| {
            for cc in std::mem::take(&mut world.changed) {
                match world.look(&cc) {
                    Ok(()) => {}
                    Err(Stuck::Again) => stuck.push(cc),
                    // The process ended; at its next start it reconciles all credentials.
                    Err(Stuck::Crashed) => return,
                }
            }
        });
        if stuck.is_empty() {
            again = AGAIN;
            continue;
        }
        tokio::select! {
            () = sleep(again) => {}
            () = shared.work.notified() => {}
        }
        again = (again * 2).min(LONGEST_AGAIN);
        shared.lock().changed.extend(stuck);
    }
}
