//! Chooses how a host is checked: as configured or, where the configuration leaves it open, by what the host offers.
//!
//! The kernel accepts connections even for a process that hangs. Therefore a router host is checked by HTTP where it
//! offers that, and a host that has once answered by HTTP must go on to answer.

use std::time::{Duration, Instant};

use signalbox_core::model::{
    CheckProxyHeader, HealthCheck, Host, HttpProbe, Probe, ROUTER_HEALTH_PATH, ROUTER_HEALTH_PORT,
};
use tokio::time::timeout;

use super::probe::{ProbeAnswer, Prober, judge};
use crate::state::handshake::HostHandshake;

/// Result of a check, with the request.
pub(super) struct CheckOutcome {
    pub(super) outcome: Result<String, String>,
    pub(super) description: String,
}

/// Question that a host is asked, and what earlier answers have shown.
pub(super) struct HostCheck {
    /// Health page of the router, where the configuration leaves the check to the host.
    page: Option<RouterPage>,
    prober: Prober,
    limit: Duration,
}

struct RouterPage {
    prober: Prober,
    /// True once the router has answered there.
    has_answered: bool,
}

/// Result of a request for the router's page.
enum PageAnswer {
    Answer(ProbeAnswer),
    /// No page of a router is there; the text says why.
    Absent(String),
    /// No answer came in time.
    TimedOut,
    /// No request was possible, for a shortage of our own.
    LocalShortage,
}

impl HostCheck {
    pub(super) fn new(check: &HealthCheck, host: &Host) -> Self {
        let is_router = check.probe == Probe::Router && host.http.or(host.https).is_some();
        Self {
            page: is_router.then(|| RouterPage::of(check.proxy_header, host)),
            prober: Prober::new(&check.probe, check.proxy_header, host).in_http2(check.h2c, host),
            limit: check.timeout,
        }
    }

    /// Tells which TCP options the host has, as the last check has seen.
    pub(super) fn tell_handshake(&self, known: &HostHandshake) {
        if let Some(page) = &self.page {
            known.take_from(&page.prober.handshake);
        }
        // The port that clients are led to knows better than that of the page.
        known.take_from(&self.prober.handshake);
    }

    /// Makes the check, within the time limit; `None` where none was possible, for a shortage of our own.
    pub(super) async fn ask(&mut self) -> Option<CheckOutcome> {
        let began = Instant::now();
        let Some(page) = &mut self.page else {
            return self.ask_as_said(self.limit, String::new()).await;
        };
        if !page.has_answered {
            return self.ask_both().await;
        }
        match page.ask(self.limit).await {
            PageAnswer::Answer(said) => Some(page.verdict(judge(said))),
            PageAnswer::TimedOut => Some(page.verdict(Err(timed_out_text(self.limit)))),
            PageAnswer::LocalShortage => None,
            PageAnswer::Absent(why) => {
                page.has_answered = false;
                let left = self.limit.saturating_sub(began.elapsed());
                self.ask_as_said(left, why).await
            }
        }
    }

    /// Requests the page and connects at once, because a port that drops packets would use up the time. The page
    /// counts if it is there.
    async fn ask_both(&mut self) -> Option<CheckOutcome> {
        let Some(page) = &self.page else { return None };
        let (look, outcome) = tokio::join!(page.ask(self.limit / 2), timeout(self.limit, self.prober.ask()));
        let why = match look {
            PageAnswer::LocalShortage => return None,
            PageAnswer::Answer(said) => {
                let page = self.page.as_mut()?;
                page.has_answered = true;
                return Some(page.verdict(judge(said)));
            }
            PageAnswer::Absent(why) => why,
            PageAnswer::TimedOut => timed_out_text(self.limit / 2),
        };
        self.verdict(outcome.unwrap_or_else(|_| Some(Err(timed_out_text(self.limit)))), &why)
    }

    async fn ask_as_said(&self, limit: Duration, why: String) -> Option<CheckOutcome> {
        let outcome = timeout(limit, self.prober.ask()).await;
        self.verdict(outcome.unwrap_or_else(|_| Some(Err(timed_out_text(self.limit)))), &why)
    }

    fn verdict(&self, outcome: Option<Result<String, String>>, why_not_page: &str) -> Option<CheckOutcome> {
        let mut asked = self.prober.description();
        if !why_not_page.is_empty() {
            asked += &format!("; HTTP on port {ROUTER_HEALTH_PORT}: {why_not_page}");
        }
        Some(CheckOutcome {
            outcome: outcome?,
            description: asked,
        })
    }
}

impl RouterPage {
    fn of(header: CheckProxyHeader, host: &Host) -> Self {
        let probe = HttpProbe {
            port: Some(ROUTER_HEALTH_PORT),
            path: ROUTER_HEALTH_PATH.to_owned(),
            host_header: None,
            tls: None,
        };
        Self {
            prober: Prober::new(&Probe::Http(probe), header, host),
            has_answered: false,
        }
    }

    async fn ask(&self, limit: Duration) -> PageAnswer {
        match timeout(limit, self.prober.answer()).await {
            Err(_) => PageAnswer::TimedOut,
            Ok(None) => PageAnswer::LocalShortage,
            // Another server listens there, without such a page.
            Ok(Some(Ok(Some(code @ 400..=499)))) => PageAnswer::Absent(format!("HTTP {code}")),
            Ok(Some(Ok(said))) => PageAnswer::Answer(said),
            Ok(Some(Err(why))) => PageAnswer::Absent(why),
        }
    }

    fn verdict(&self, outcome: Result<String, String>) -> CheckOutcome {
        CheckOutcome {
            outcome,
            description: self.prober.description(),
        }
    }
}

fn timed_out_text(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Makes a host at a loopback address of its own, so that tests do not share port 1936, and its listener.
    async fn host(last: u8, is_router: bool) -> (Host, TcpListener) {
        let address = [127, 19, 36, last].into();
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = Some(listener.local_addr().unwrap().port());
        let host = Host {
            name: "h".into(),
            address,
            http: port.filter(|_| is_router),
            https: None,
            tcp: port.filter(|_| !is_router),
            ports: std::collections::BTreeMap::new(),
            weight: 1,
            backup: false,
            health_page: None,
        };
        (host, listener)
    }

    fn question(host: &Host) -> HostCheck {
        let check = HealthCheck {
            proxy_header: CheckProxyHeader::HostPorts,
            timeout: Duration::from_millis(600),
            ..HealthCheck::DEFAULT
        };
        HostCheck::new(&check, host)
    }

    /// Serves port 1936 with this status; an empty status hangs.
    async fn page(host: &Host, status: &'static str) -> tokio::task::JoinHandle<()> {
        let listener = TcpListener::bind((host.address, ROUTER_HEALTH_PORT)).await.unwrap();
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 512];
                let n = stream.read(&mut request).await.unwrap();
                assert!(request[..n].starts_with(b"GET /healthz "), "without a PROXY header");
                if status.is_empty() {
                    held.push(stream);
                } else {
                    let answer = format!("HTTP/1.1 {status}\r\n\r\n");
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        })
    }

    async fn end(page: tokio::task::JoinHandle<()>) {
        page.abort();
        assert!(page.await.unwrap_err().is_cancelled(), "it has failed before");
    }

    #[tokio::test]
    async fn a_router_is_asked_at_1936_and_must_go_on_to_answer_there() {
        let (host, listener) = host(1, true).await;
        let mut question = question(&host);
        let verdict = question.ask().await.unwrap();
        assert!(
            verdict.outcome.is_ok(),
            "nothing is at 1936, and it accepts connections"
        );
        assert!(
            verdict.description.starts_with("TCP connect on port") && verdict.description.contains("1936: connect to"),
            "{}",
            verdict.description
        );

        for (status, is_well) in [("200 OK", true), ("503 Busy", false)] {
            let page = page(&host, status).await;
            let verdict = question.ask().await.unwrap();
            assert_eq!(verdict.outcome.is_ok(), is_well, "{status}");
            assert_eq!(verdict.description, "HTTP on port 1936");
            end(page).await;
        }
        // A server that hangs is unhealthy, though its connections are accepted.
        let hanging = page(&host, "").await;
        let verdict = question.ask().await.unwrap();
        assert_eq!(verdict.outcome.unwrap_err(), "no answer within 600ms");
        end(hanging).await;
        // The router is gone, and another server listens.
        let other = page(&host, "404 Not Found").await;
        let verdict = question.ask().await.unwrap();
        assert!(
            verdict.outcome.is_ok() && verdict.description.ends_with("1936: HTTP 404"),
            "{}",
            verdict.description
        );
        end(other).await;
        drop(listener);
        assert!(question.ask().await.unwrap().outcome.is_err());
    }

    #[tokio::test]
    async fn hosts_without_a_router_page_are_checked_by_tcp_connect() {
        let (silent, _listener) = host(2, true).await;
        let _page = page(&silent, "").await;
        let verdict = question(&silent).ask().await.unwrap();
        assert!(
            verdict.outcome.is_ok() && verdict.description.ends_with("no answer within 300ms"),
            "{}",
            verdict.description
        );

        let (database, listener) = host(3, false).await;
        let _page = page(&database, "503 Busy").await;
        let verdict = question(&database).ask().await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(
            verdict.description,
            format!("TCP connect on port {port}, with a PROXY header")
        );
        assert!(verdict.outcome.is_ok());
    }
}
