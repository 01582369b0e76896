import { dateTime } from "../format.js";
import { usePolled } from "../live.js";
import { Failure, State } from "../parts.js";
import { html } from "../vendor/preact-htm.js";
import { Records } from "./records.js";

const STATES = { master: "good", backup: "idle", fault: "bad" };

export function Ha() {
  const { data, error } = usePolled("/api/v1/ha", 1000);
  if (data && !data.configured) {
    return html`<h1>High availability</h1><p class="empty">This balancer shares no addresses with others: there is no <code>ha</code> in its configuration.</p>`;
  }
  const state = (group) => html`<${State} is=${STATES[group.state] ?? "warn"}>${group.state ?? "not reported"}<//>`;
  return html`<h1>High availability</h1>
    <${Failure} error=${error} />
    ${data ? html`<p>${data.name}, mode ${data.mode}; this node is <b>${data.node ?? "not one of ha.nodes"}</b>.
      ${data.mode === "external" || data.supervised ? "" : html` <${State} is="bad">signalbox ha run is not connected<//>`}</p>` : null}
    <h2>Groups</h2>
    <${Records} caption="Groups of virtual addresses" rows=${data?.groups ?? []} empty="None."
      cells=${{ state, since_ms: (group) => (group.since_ms ? dateTime(group.since_ms) : "–") }} />
    <h2>Nodes</h2>
    <${Records} caption="Nodes" rows=${data?.nodes ?? []} empty="None is listed." />
    ${data?.sync ? html`<h2>Replication of flows</h2>
      <p>${data.sync.promoted} flows of other nodes were promoted here.</p>
      <${Records} caption="Other nodes" rows=${data.sync.peers} empty="No other node." />` : null}`;
}
