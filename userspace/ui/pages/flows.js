import { bytes, seconds } from "../format.js";
import { usePolled } from "../live.js";
import { Failure, Table } from "../parts.js";
import { html, useState } from "../vendor/preact-htm.js";

const FILTERS = ["host", "cluster", "listener", "route", "tier"];

export function Flows() {
  const [filter, setFilter] = useState({});
  const [client, setClient] = useState("");
  const query = new URLSearchParams({ limit: "500", ...Object.fromEntries(Object.entries(filter).filter(([, value]) => value)) });
  const { data, error } = usePolled(`/api/v1/flows?${query}`, 2000);
  const rows = (data?.flows ?? []).filter((flow) => flow.client.includes(client.trim()));
  const input = (name) => html`<label>${name} <input value=${filter[name] ?? ""} onChange=${(event) => setFilter({ ...filter, [name]: event.target.value.trim() })} /></label>`;
  return html`
    <header class="row"><h1>Flows</h1><p>${data ? `${rows.length} of ${data.total}` : ""}</p></header>
    <form class="row" onSubmit=${(event) => event.preventDefault()}>${FILTERS.map(input)}
      <label>client <input value=${client} onInput=${(event) => setClient(event.target.value)} /></label></form>
    <${Failure} error=${error} />
    <${Table} caption="Flows" rows=${rows} keyOf=${(flow) => flow.id} empty="No flow now. A flow is shown while its connection is open."
      columns=${[
        ["Client", (flow) => html`<code>${flow.client}</code>`],
        ["Listener", (flow) => flow.listener],
        ["Route", (flow) => flow.route ?? "–"],
        ["Host", (flow) => `${flow.cluster}/${flow.host}`],
        ["Tier", (flow) => html`${flow.tier} <small>${flow.not_cut ? `not cut: ${flow.not_cut}` : flow.tier_reason}</small>`],
        ["State", (flow) => flow.state],
        ["Age", (flow) => seconds(flow.age_seconds), { number: true }],
        ["Idle", (flow) => seconds(flow.idle_seconds ?? 0), { number: true }],
        ["In", (flow) => bytes(flow.bytes_in), { number: true }],
        ["Out", (flow) => bytes(flow.bytes_out), { number: true }],
      ]} />`;
}
