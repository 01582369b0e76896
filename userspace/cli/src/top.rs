//! `signalbox top`: a live view in a terminal, from the same streams and answers as the pages in the browser.

mod data;
mod draw;
#[cfg(test)]
mod example;
mod feed;
mod grid;
mod history;
mod keys;
mod overview;
mod panes;
mod screen;
mod shares;
mod text;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{anyhow, bail};
use signalbox_core::model::Balancer;

use self::data::TopData;
use super::client::{SocketArgs, block_on};
use super::show;
use signalbox_sources::client::ApiClient;

/// Watch a running signalbox in the terminal: connections, hosts, routes and flows as they change.
///
/// ? shows the keys. Without a terminal, --once prints the overview. NO_COLOR is honoured.
#[derive(clap::Args)]
pub(super) struct TopArgs {
    #[command(flatten)]
    at: SocketArgs,
    /// Watch the signalbox whose admin API has this URL, such as http://127.0.0.1:8089, instead of one on this machine.
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// File with the token of the API at --url. Without it, hosts cannot be rotated there.
    #[arg(long, value_name = "FILE", requires = "url")]
    token_file: Option<PathBuf>,
    /// PEM file with the certificate authorities (CAs) of the certificate at --url.
    #[arg(long, value_name = "FILE", requires = "url")]
    ca: Option<PathBuf>,
    /// Print the overview once, as text.
    #[arg(long)]
    once: bool,
}

impl TopArgs {
    /// Client of the API, and its name in the view.
    fn client(&self) -> (ApiClient, String) {
        match &self.url {
            None => (
                ApiClient::Socket(self.at.socket.clone()),
                self.at.socket.display().to_string(),
            ),
            Some(url) => {
                let balancer = Balancer {
                    name: None,
                    url: url.clone(),
                    token_file: self.token_file.clone(),
                    ca: self.ca.clone(),
                    identity: None,
                };
                (ApiClient::Balancer(balancer), url.clone())
            }
        }
    }
}

pub(super) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let (client, address) = args.client();
    if args.once {
        // The error may quote the balancer, whose texts are as untrusted as its answers.
        let text = block_on(once(&client)).map_err(|error| anyhow!(text::safe(&format!("{error:#}"))))?;
        show::print_text(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if !std::io::stdout().is_terminal() || is_dumb {
        bail!("standard output is not a terminal that can show this view: --once prints the overview as text");
    }
    block_on(screen::watch(Arc::new(client), text::safe(&address)))
}

/// The overview as text.
async fn once(client: &ApiClient) -> anyhow::Result<String> {
    let mut data = TopData::default();
    for update in feed::present(client).await? {
        data.take(update, Instant::now());
    }
    Ok(overview::plain(&data))
}
