//! Reads the body of a request, within limits of size and time.
//!
//! Invariants:
//! * Until a request has its turn, at most [`SMALL`] bytes of its body are in memory, and one more
//!   piece that was in its connection's buffer.
//! * [`read`] takes a turn only after more than [`SMALL`] bytes of the body have arrived, so a
//!   caller that sends nothing takes no turn.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::domain::limits::connections::ConnectionSource;
use crate::domain::limits::text::{LONGEST_TEXT, cut};
use crate::turns::{CallerTurn, Turns};

/// Largest body of a request or of an answer, in bytes, that counts as small. A request with a
/// larger body waits for its turn, and is processed on another thread, so that the main thread can
/// renew the Lease meanwhile.
pub(super) const SMALL: usize = 32 << 10;

/// Limits of a request's body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    /// Largest body in bytes.
    pub(super) most: usize,
    /// Time limit for the arrival of a small body, and of the first [`SMALL`] bytes of a large one.
    pub(super) begins: Duration,
    /// Time limit for the arrival of the rest of a large body, from the start of the request's
    /// turn. A slow sender of a large body can delay the next sender by this time at most.
    pub(super) ends: Duration,
}

/// Complete body of a request.
pub(super) struct CompleteBody {
    pub(super) bytes: Vec<u8>,
    /// Turn of a large request in its queue ([`super::large_queue`]). `None`: the body is small,
    /// and was read without a turn.
    pub(super) turn: Option<CallerTurn<ConnectionSource>>,
}

/// Reads a body within the limits. A large body must declare its length, as the API server does. If
/// the declared length is more than `limits.most`, the request is refused before the body arrives.
/// Memory for a large body is reserved once, at the start of its turn.
pub(super) async fn read(
    mut body: Body,
    turns: &Turns<ConnectionSource>,
    source: ConnectionSource,
    limits: BodyLimits,
) -> Result<CompleteBody, RequestRefusal> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > limits.most {
        return Err(RequestRefusal::too_large(limits.most));
    }
    let late = |_| RequestRefusal::late("the body did not arrive in time");
    let mut bytes = Vec::with_capacity(declared.min(SMALL));
    let beginning = read_until(&mut body, &mut bytes, SMALL);
    let Some(next) = timeout(limits.begins, beginning).await.map_err(late)?? else {
        return Ok(CompleteBody { bytes, turn: None });
    };
    if declared <= SMALL {
        return Err(RequestRefusal::without_length());
    }
    let turn = turns.take(source).await;
    bytes.reserve_exact(declared.saturating_sub(bytes.len()));
    bytes.extend_from_slice(&next);
    drop(next);
    let rest = read_until(&mut body, &mut bytes, declared);
    match timeout(limits.ends, rest).await.map_err(late)?? {
        None => Ok(CompleteBody { bytes, turn: Some(turn) }),
        Some(_) => Err(RequestRefusal::without_length()),
    }
}

/// Reads the body into `bytes`, until `bytes` would have more than `most` bytes. Returns the piece
/// of the body that has no room. `None`: the end of the body was reached.
async fn read_until(
    body: &mut Body,
    bytes: &mut Vec<u8>,
    most: usize,
) -> Result<Option<Bytes>, RequestRefusal> {
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|e| RequestRefusal::malformed(format!("cannot read the body: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > most.saturating_sub(bytes.len()) {
            return Ok(Some(data));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(None)
}

/// First 100 characters of a text that a caller chose. An answer repeats only these.
pub(super) fn clipped(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Refusal of a request by an HTTP status. The answer contains no review. The fields are the status
/// and the reason.
#[derive(Debug)]
pub(super) struct RequestRefusal(pub(super) StatusCode, pub(super) String);

impl RequestRefusal {
    /// Refusal of a request that has a fault; `why` describes the fault. A long `why` is cut: it
    /// may repeat a text of the request, and each connection may have a refusal in memory.
    pub(super) fn malformed(why: impl std::fmt::Display) -> Self {
        let why = cut(why.to_string(), LONGEST_TEXT);
        Self(StatusCode::BAD_REQUEST, format!("{why}\n"))
    }

    fn too_large(most: usize) -> Self {
        let text = format!("the body is larger than {most} bytes\n");
        Self(StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    fn without_length() -> Self {
        let text = format!("a body of more than {SMALL} bytes needs a Content-Length\n");
        Self(StatusCode::LENGTH_REQUIRED, text)
    }

    /// Refusal of a request that is late; `what` says what was late. A stall of this machine may be
    /// the cause, so the API server should send the request again. The API server repeats a request
    /// after 503 with `Retry-After` (`checkWait` in k8s.io/client-go/rest) until its own deadline,
    /// but not after 408 or 504.
    pub(super) fn late(what: &str) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, format!("{what}\n"))
    }
}

impl IntoResponse for RequestRefusal {
    fn into_response(self) -> Response {
        let mut response = (self.0, self.1).into_response();
        if self.0 == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("0"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::HttpBody;
    use hyper::body::{Frame, SizeHint};
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    /// Body of a declared length, whose data arrives when the test sends it.
    struct ArrivingBody {
        declared: usize,
        data: UnboundedReceiver<Bytes>,
    }

    impl HttpBody for ArrivingBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.data.poll_recv(cx).map(|data| data.map(|data| Ok(Frame::data(data))))
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.declared as u64)
        }
    }

    fn arriving(declared: usize) -> (UnboundedSender<Bytes>, Body) {
        let (sender, data) = unbounded_channel();
        (sender, Body::new(ArrivingBody { declared, data }))
    }

    fn source(last: u8) -> ConnectionSource {
        ConnectionSource::of([10, 0, 0, last].into())
    }

    /// Limits with a time for the rest of a large body that is over at once.
    const HASTY: BodyLimits =
        BodyLimits { most: 8 << 20, begins: Duration::from_mins(1), ends: Duration::ZERO };
    /// Limits that no body of these tests exceeds.
    const PATIENT: BodyLimits = BodyLimits { ends: Duration::from_mins(1), ..HASTY };

    async fn is_free(turns: &Turns<ConnectionSource>) -> bool {
        timeout(Duration::ZERO, turns.take(source(9))).await.is_ok()
    }

    #[tokio::test]
    async fn a_large_body_has_no_turn_before_more_than_a_small_one_has_arrived() {
        let turns = Turns::new(1);
        let (sender, body) = arriving(SMALL * 2);
        let mut reading = Box::pin(read(body, &turns, source(1), PATIENT));
        assert!(timeout(Duration::ZERO, &mut reading).await.is_err());
        assert!(is_free(&turns).await, "nothing has arrived");
        sender.send(Bytes::from(vec![b'a'; SMALL])).unwrap();
        assert!(timeout(Duration::ZERO, &mut reading).await.is_err());
        assert!(is_free(&turns).await, "not more than a small body has arrived");
        sender.send(Bytes::from_static(b"b")).unwrap();
        assert!(timeout(Duration::ZERO, &mut reading).await.is_err());
        assert!(!is_free(&turns).await, "its turn");
        sender.send(Bytes::from(vec![b'c'; SMALL - 1])).unwrap();
        drop(sender);
        let whole = reading.await.unwrap();
        assert_eq!(whole.bytes.len(), SMALL * 2);
        assert_eq!(&whole.bytes[SMALL - 1..=SMALL + 1], b"abc");
        assert!(!is_free(&turns).await, "the turn lasts until the answer may be sent");
        drop(whole);
        assert!(is_free(&turns).await);
    }

    #[tokio::test]
    async fn a_large_body_that_does_not_arrive_in_its_turn_loses_it() {
        let turns = Turns::new(1);
        let (sender, body) = arriving(SMALL * 2);
        sender.send(Bytes::from(vec![b'a'; SMALL + 1])).unwrap();
        let refusal = read(body, &turns, source(1), HASTY).await.err().unwrap();
        assert_eq!(refusal.0, StatusCode::SERVICE_UNAVAILABLE);
        assert!(is_free(&turns).await);
    }

    #[tokio::test]
    async fn a_small_body_has_no_turn_and_a_large_one_needs_a_length() {
        let turns = Turns::new(1);
        let taken = turns.take(source(1)).await;
        let small = read(Body::from(vec![b'a'; SMALL]), &turns, source(2), HASTY).await.unwrap();
        assert_eq!((small.bytes.len(), small.turn.is_none()), (SMALL, true));
        for (declared, sent, code) in [
            (0, SMALL + 1, StatusCode::LENGTH_REQUIRED),
            (HASTY.most + 1, 0, StatusCode::PAYLOAD_TOO_LARGE),
        ] {
            let (sender, body) = arriving(declared);
            sender.send(Bytes::from(vec![b'a'; sent])).unwrap();
            let refusal = read(body, &turns, source(2), HASTY).await.err().unwrap();
            assert_eq!(refusal.0, code, "{declared}");
        }
        drop(taken);
    }

    #[test]
    fn a_refusal_does_not_repeat_a_long_text() {
        let refusal = RequestRefusal::malformed("x".repeat(100_000));
        assert_eq!(refusal.1.len(), LONGEST_TEXT + 1);
    }
}
