import { dateTime } from "../format.js";
import { usePolled } from "../live.js";
import { Action, Failure, useToken } from "../parts.js";
import { html, useState } from "../vendor/preact-htm.js";
import { Records } from "./records.js";

/** Takes a host, machine, cluster or application out of rotation. */
function TakeOut() {
  const [name, setName] = useState("");
  const [timeout, setTimeout] = useState(120);
  if (!useToken()) return html`<p class="empty">Enter the token (above) to rotate.</p>`;
  const body = { action: "out", names: [name], timeout: Number(timeout) };
  return html`<div class="row"><label>Name <input value=${name} onInput=${(event) => setName(event.target.value.trim())} placeholder="east-1, machine:10.2.0.2" /></label>
    <label>Seconds to drain <input type="number" min="0" max="86400" value=${timeout} onInput=${(event) => setTimeout(event.target.value)} /></label>
    ${name ? html`<${Action} label=${`Take ${name} out`} method="POST" path="/api/v1/rotations" body=${body} />` : null}</div>`;
}

export function Rotation() {
  const { data, error } = usePolled("/api/v1/rotations", 1000);
  const into = (row) => html`<${Action} label="Into rotation" method="POST" path="/api/v1/rotations" body=${{ action: "in", names: [row.subject] }} />`;
  const off = (job) => (job.ended ? "–" : html`<${Action} label="Call off" method="DELETE" path=${`/api/v1/jobs/${job.id}`} />`);
  const rows = (data?.rotations ?? []).map((row) => ({ ...row, " ": null }));
  const jobs = (data?.jobs ?? []).map((job) => ({ ...job, " ": null }));
  return html`<h1>Rotation</h1>
    <p class="about">A host, cluster or application out of rotation gets no new connection. Established ones may finish.</p>
    <${Failure} error=${error} />
    <${TakeOut} />
    <h2>Out of rotation</h2>
    <${Records} caption="Out of rotation" rows=${rows} cells=${{ " ": into, since: (row) => (typeof row.since === "number" ? dateTime(row.since * 1000) : String(row.since)) }} empty="Nothing is out of rotation." />
    <h2>Jobs</h2>
    <${Records} caption="Jobs" rows=${jobs} cells=${{ " ": off }} empty="No job." />`;
}
