//! Whether the kernel can carry a request that is its client's last, and the answer to it. The answer is then not
//! looked at, and bytes that the client sends after the request never reach the host.

use crate::model::http::RequestPolicy;
use crate::wire::http1::framing::BodyLength;

/// Obstacle to cutting a request that is its connection's last. The number goes into tables of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastRequestObstacle {
    /// The body has not come as a whole, its length is not known, or the client waits for a 100 (Continue).
    BodyOutstanding,
    /// The client has sent more than the request.
    BytesBehind,
    /// The route changes answers: their fields, or by a cookie.
    AnswerEdited,
    /// The route has its own time limit for answers or for bodies.
    AnswerTimeout,
    /// Requests are logged, with the status codes of their answers.
    Logged,
    /// The client has closed its sending side, which many hosts take for its end.
    HalfClosed,
    /// The host is spoken to in HTTP/2.
    Http2Host,
    /// A while ago the host's handshake did not agree with a client's: its kept connections are more useful.
    HostUnfit,
}

/// A request that is its connection's last.
#[derive(Clone, Copy, Debug)]
pub struct LastRequest<'a> {
    /// Whether requests are logged.
    pub is_logged: bool,
    /// Treatment by the route.
    pub policy: &'a RequestPolicy,
    /// Whether the client waits for a 100 (Continue).
    pub expects_continue: bool,
    /// Length of the body.
    pub body: BodyLength,
    /// Bytes that have been read after the head.
    pub behind_head: usize,
}

impl LastRequest<'_> {
    /// Obstacle to cutting the request, where there is one.
    #[must_use]
    pub fn obstacle(&self) -> Option<LastRequestObstacle> {
        lasting_obstacle(self.policy, self.is_logged).or_else(|| self.obstacle_of_body())
    }

    fn obstacle_of_body(&self) -> Option<LastRequestObstacle> {
        let length = match self.body {
            BodyLength::None => 0,
            BodyLength::Known(length) => length,
            BodyLength::Chunked | BodyLength::UntilClose => return Some(LastRequestObstacle::BodyOutstanding),
        };
        let come = self.behind_head as u64;
        if come < length || self.expects_continue {
            Some(LastRequestObstacle::BodyOutstanding)
        } else if come > length {
            Some(LastRequestObstacle::BytesBehind)
        } else {
            None
        }
    }
}

/// Obstacle to cutting any request of a route, where there is one.
#[must_use]
pub fn lasting_obstacle(policy: &RequestPolicy, is_logged: bool) -> Option<LastRequestObstacle> {
    let edits_answer = policy
        .headers
        .as_ref()
        .is_some_and(|headers| !headers.response.is_empty());
    if is_logged {
        Some(LastRequestObstacle::Logged)
    } else if policy.affinity.is_some() || edits_answer {
        Some(LastRequestObstacle::AnswerEdited)
    } else if policy
        .timeouts
        .body
        .or(policy.timeouts.answer)
        .or(policy.passive.answer)
        .is_some()
    {
        Some(LastRequestObstacle::AnswerTimeout)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::http::{AffinityScope, CookieAffinity};
    use crate::model::http::{HeaderEdits, PassivePolicy, RequestLimits, RouteTimeouts};
    use crate::wire::http::cookie::StickyCookie;
    use crate::wire::http1::edit::{FieldEdit, FieldName};

    const PLAIN: LastRequest<'static> = LastRequest {
        is_logged: false,
        policy: &RequestPolicy::NONE,
        expects_continue: false,
        body: BodyLength::None,
        behind_head: 0,
    };

    #[test]
    fn a_request_is_cut_when_it_is_whole_and_no_bytes_follow() {
        use LastRequestObstacle::{BodyOutstanding, BytesBehind};
        for (body, behind_head, expected) in [
            (BodyLength::None, 0, None),
            (BodyLength::Known(0), 0, None),
            (BodyLength::Known(5), 5, None),
            (BodyLength::None, 1, Some(BytesBehind)),
            (BodyLength::Known(0), 2, Some(BytesBehind)),
            (BodyLength::Known(5), 6, Some(BytesBehind)),
            (BodyLength::Known(5), 4, Some(BodyOutstanding)),
            (BodyLength::Known(u64::MAX), 0, Some(BodyOutstanding)),
            (BodyLength::Chunked, 0, Some(BodyOutstanding)),
            (BodyLength::Chunked, 5, Some(BodyOutstanding)),
            (BodyLength::UntilClose, 0, Some(BodyOutstanding)),
        ] {
            let request = LastRequest {
                body,
                behind_head,
                ..PLAIN
            };
            assert_eq!(request.obstacle(), expected, "{body:?}, {behind_head} bytes");
            let waits = LastRequest {
                expects_continue: true,
                ..request
            };
            assert!(waits.obstacle().is_some(), "{body:?}, {behind_head} bytes");
        }
    }

    #[test]
    fn a_policy_that_needs_the_answer_prevents_a_last_request_cut() {
        use LastRequestObstacle::{AnswerEdited, AnswerTimeout, Logged};
        let edit = |name| FieldEdit::Set(FieldName::constant(name), b"1".to_vec());
        let policy = |change: fn(&mut RequestPolicy)| {
            let mut policy = RequestPolicy::NONE;
            change(&mut policy);
            policy
        };
        let mut edits = RequestPolicy::NONE;
        edits.headers = Some(HeaderEdits {
            request: Vec::new(),
            response: vec![edit("X-Answer")],
        });
        let mut request_edits = RequestPolicy::NONE;
        request_edits.headers = Some(HeaderEdits {
            request: vec![edit("X-Request")],
            response: Vec::new(),
        });
        let cookie = policy(|policy| {
            policy.affinity = Some(CookieAffinity {
                cookie: StickyCookie::new("sb", None).unwrap(),
                scope: AffinityScope::Host,
            });
        });
        let own = policy(|policy| {
            policy.timeouts = RouteTimeouts {
                answer: Some(Duration::from_secs(1)),
                ..RouteTimeouts::default()
            };
        });
        let body = policy(|policy| policy.timeouts.body = Some(Duration::from_secs(1)));
        let claimed = policy(|policy| {
            policy.passive = PassivePolicy {
                answer: Some(Duration::from_secs(1)),
                ..PassivePolicy::default()
            };
        });
        let harmless = policy(|policy| {
            policy.rewrite = Some("/".to_owned());
            policy.timeouts.tunnel = Some(Duration::from_secs(1));
            policy.limits = Some(RequestLimits::default());
        });
        for (policy, expected) in [
            (&edits, Some(AnswerEdited)),
            (&cookie, Some(AnswerEdited)),
            (&own, Some(AnswerTimeout)),
            (&body, Some(AnswerTimeout)),
            (&claimed, Some(AnswerTimeout)),
            (&request_edits, None),
            (&harmless, None),
        ] {
            assert_eq!(LastRequest { policy, ..PLAIN }.obstacle(), expected, "{policy:?}");
        }
        let logged = LastRequest {
            is_logged: true,
            ..PLAIN
        };
        assert_eq!(logged.obstacle(), Some(Logged));
    }
}
