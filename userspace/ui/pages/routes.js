import { percent, short } from "../format.js";
import { usePolled } from "../live.js";
import { Action, Failure, Search, State, Table, useToken } from "../parts.js";
import { read } from "../api.js";
import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";

/** Milliseconds over which actual shares are counted. */
const SHARE_PERIOD = 60_000;

/** Connections of each route and cluster in the last minute: the difference of two answers. */
function useShares(figures, at) {
  const past = useRef([]);
  useEffect(() => {
    if (!figures) return;
    past.current.push({ at, routes: figures.routes });
    past.current = past.current.filter((one) => at - one.at <= SHARE_PERIOD);
  }, [figures, at]);
  const shareOf = (route, cluster) => {
    const count = (routes) => routes?.[route]?.clusters?.[cluster]?.connections ?? 0;
    return count(figures?.routes) - count(past.current[0]?.routes ?? figures?.routes);
  };
  // Before a minute has been seen, nobody knows whether there was a connection in it.
  shareOf.isWhole = at - (past.current[0]?.at ?? at) > 0.9 * SHARE_PERIOD;
  return shareOf;
}

/** Weights as configured above, as connections really went below. */
function Weights({ route, shareOf }) {
  const all = route.clusters.reduce((sum, cluster) => sum + cluster.weight, 0);
  const counts = route.clusters.map((cluster) => shareOf(route.host, cluster.name));
  const seen = counts.reduce((sum, n) => sum + n, 0);
  const bar = (parts, whole, label) => html`<div class="bar" role="img" aria-label=${label}>${parts.map((part, i) =>
    html`<i class=${`part part-${i % 6}`} style=${{ width: `${whole ? (100 * part) / whole : 0}%` }}></i>`)}</div>`;
  return html`<div class="weights">
    ${bar(route.clusters.map((cluster) => cluster.weight), all, `weights of ${route.host}`)}
    ${bar(counts, seen, `connections of ${route.host} in the last minute`)}
    <p>${route.clusters.map((cluster, i) => html`<span class="key"><i class=${`part part-${i % 6}`}></i>${cluster.name}${" "}
      <b>${percent(cluster.weight, all)}</b> <small>${seen ? `was ${percent(counts[i], seen)}` : shareOf.isWhole ? "no connection in the last minute" : "no figures yet"}${cluster.usable_hosts ? "" : ", no usable host"}</small></span>`)}</p>
  </div>`;
}

/** New weights for a route. */
function Editor({ route }) {
  const [weights, setWeights] = useState(() => Object.fromEntries(route.clusters.map((c) => [c.name, c.weight])));
  const set = (name) => (event) => setWeights({ ...weights, [name]: Number(event.target.value) });
  return html`<div class="editor">
    ${Object.entries(weights).map(([name, weight]) => html`<label>${name} <input type="number" min="0" max="65535" value=${weight} onInput=${set(name)} /></label>`)}
    <${Action} label="Set weights" method="PUT" path=${`/api/v1/routes/${encodeURIComponent(route.host)}`} body=${{ clusters: weights }} />
  </div>`;
}

/** Why a name goes where it goes. */
function Explain({ name }) {
  const [host, setHost] = useState(name);
  const [client, setClient] = useState("");
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => setHost(name), [name]);
  const ask = async (event) => {
    event.preventDefault();
    try {
      const query = new URLSearchParams({ host, ...(client ? { client } : {}) });
      setAnswer(await read(`/api/v1/explain?${query}`));
      setError(null);
    } catch (problem) {
      setError(problem.message);
    }
  };
  return html`<section class="explain"><h2>Explain</h2>
    <form class="row" onSubmit=${ask}>
      <label>Name <input required value=${host} onInput=${(event) => setHost(event.target.value)} placeholder="app1.example.com" /></label>
      <label>Client <input value=${client} onInput=${(event) => setClient(event.target.value)} placeholder="any address" /></label>
      <button>Explain</button>
    </form>
    <${Failure} error=${error} />
    ${(answer?.listeners ?? []).map((at) => html`<article class="card">
      <h3>${at.listener} <small>${at.protocol}</small></h3>
      <p><${State} is=${at.verdict === "route" ? "good" : "warn"}>${at.verdict}<//>${at.next_host ? html` the next connection goes to <b>${at.next_host}</b>` : null}</p>
      ${at.client_gets ? html`<p>The client gets ${at.client_gets}</p>` : null}
      ${answer.did_you_mean ? html`<p>Did you mean <b>${answer.did_you_mean}</b>?</p>` : null}
      ${at.datapath && !at.client_gets ? html`<p>It ${at.datapath.verdict}${at.datapath.reason ? `: ${at.datapath.reason}` : ""}.</p>` : null}
      <ul>${(at.clusters ?? []).map((cluster) => html`<li><b>${cluster.name}</b> ${cluster.share_percent?.toFixed(1)} % by ${cluster.balance}:
        ${cluster.hosts.map((one) => html` <${State} is=${one.takes_connections ? "good" : "bad"}>${one.name}${one.reason ? ` (${one.reason})` : ""}<//>`)}</li>`)}</ul>
    </article>`)}
  </section>`;
}

export function Routes() {
  const { data, error } = usePolled("/api/v1/routes", 2000);
  const { data: figures, at } = usePolled("/api/v1/figures", 2000);
  const [wanted, setWanted] = useState("");
  const [asked, setAsked] = useState("");
  const [edited, setEdited] = useState(null);
  const allowed = useToken();
  const shareOf = useShares(figures, at);
  const rows = (data?.routes ?? []).filter((route) => route.host.includes(wanted.trim().toLowerCase()));
  const shown = rows.slice(0, 200);
  const columns = [
    ["Name", (route) => route.host],
    ["Weights, and the last minute", (route) => html`<${Weights} route=${route} shareOf=${shareOf} />`],
    ["Active", (route) => short(route.active_connections), { number: true }],
    ["Total", (route) => short(route.total_connections), { number: true }],
    ["", (route) => html`<button class="quiet" onClick=${() => setAsked(route.host)}>explain</button>
      ${allowed && route.clusters.length ? html`<button class="quiet" aria-expanded=${edited === route.host} onClick=${() => setEdited(edited === route.host ? null : route.host)}>weights</button>` : null}`],
  ];
  return html`
    <header class="row"><h1>Routes</h1><${Search} label="Filter" value=${wanted} onInput=${setWanted} />
      <p>${rows.length} of ${data?.routes.length ?? 0}${rows.length > shown.length ? `; the first ${shown.length} are shown` : ""}. Other names: ${JSON.stringify(data?.unmatched ?? "…").replaceAll('"', "")}</p></header>
    <${Failure} error=${error} />
    <${Table} caption="Routes" rows=${shown} columns=${columns} keyOf=${(route) => route.host} empty="No route here."
      after=${(route) => (edited === route.host ? html`<tr class="detail"><td colspan="5"><${Editor} route=${route} /></td></tr>` : null)} />
    <${Explain} name=${asked} />`;
}
