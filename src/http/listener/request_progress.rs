//! Progress of the current request and answer on one connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::domain::limits::connections::ConnectionPhase;

/// Progress of the current request and answer on one connection. Only one task writes it.
#[derive(Debug, Default)]
pub(super) struct RequestProgress {
    /// Whether data has arrived from the caller since the last answer.
    has_heard: AtomicBool,
    /// Whether the head of a request has arrived and its answer has not begun.
    is_asked: AtomicBool,
    /// Whether the request's body is complete.
    is_whole: AtomicBool,
    /// Whether part of an answer is not sent yet.
    is_unsent: AtomicBool,
    answers: AtomicU64,
}

impl RequestProgress {
    /// Phase of the connection.
    pub(super) fn phase(&self) -> ConnectionPhase {
        let is = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        match () {
            () if is(&self.is_asked) && is(&self.is_whole) => ConnectionPhase::Working,
            () if is(&self.is_asked) => ConnectionPhase::Asking,
            () if is(&self.is_unsent) => ConnectionPhase::Sending,
            () if is(&self.has_heard) => ConnectionPhase::Heading,
            () => ConnectionPhase::Idle,
        }
    }

    /// Number of answers on this connection so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Records a request whose head has arrived. `is_whole`: whether the request has no body, so
    /// that nothing more arrives.
    pub(super) fn asked(&self, is_whole: bool) {
        self.is_whole.store(is_whole, Ordering::Relaxed);
        self.is_asked.store(true, Ordering::Relaxed);
    }

    /// Records an answer that is about to be written.
    pub(super) fn answered(&self) {
        self.has_heard.store(false, Ordering::Relaxed);
        self.is_unsent.store(true, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
        self.answers.fetch_add(1, Ordering::Relaxed);
    }
}

/// Stream of a connection. It records in `progress` whether data was read, and whether part of an
/// answer is not sent yet.
///
/// Invariant: vectored writes are passed on to `io`. If a stream has no vectored writes, hyper
/// copies each answer, and keeps the memory of the copy until the connection ends.
pub(super) struct RecordedStream<IO> {
    pub(super) io: IO,
    pub(super) progress: Arc<RequestProgress>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for RecordedStream<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.progress.has_heard.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for RecordedStream<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.progress.is_unsent.store(true, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.progress.is_unsent.store(true, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.progress.is_unsent.store(false, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Body of a request. Records in `progress` when the body is complete.
pub(super) struct ArrivingBody {
    pub(super) body: Incoming,
    pub(super) progress: Arc<RequestProgress>,
}

impl HttpBody for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.progress.is_whole.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
