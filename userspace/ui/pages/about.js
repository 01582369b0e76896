import { date } from "../format.js";
import { usePolled } from "../live.js";
import { Failure } from "../parts.js";
import { html } from "../vendor/preact-htm.js";
import { Records } from "./records.js";

export function About() {
  const { data: status, error } = usePolled("/api/v1/status", 10_000);
  const { data: certificates } = usePolled("/api/v1/certificates", 10_000);
  const { data: listeners } = usePolled("/api/v1/listeners", 10_000);
  const { data: sources } = usePolled("/api/v1/sources", 10_000);
  return html`<h1>About</h1>
    <${Failure} error=${error} />
    ${status ? html`<dl class="facts">
      <dt>Version</dt><dd>${status.version} (${status.revision}), maps of version ${status.abi}</dd>
      <dt>Process</dt><dd>${status.pid}, ${status.workers} workers</dd>
      <dt>Configuration</dt><dd>${status.config ?? "built in"}; ${status.reloads.ok} ${status.reloads.ok === 1 ? "change" : "changes"} taken, ${status.reloads.failed} refused</dd>
    </dl>` : null}
    <h2>Listeners</h2>
    <${Records} caption="Listeners" rows=${listeners?.listeners ?? []} empty="No listener." />
    <h2>Certificates</h2>
    <${Records} caption="Certificates" rows=${certificates?.certificates ?? []} hide=${["not_before"]}
      cells=${{ not_after: (one) => date(one.not_after * 1000) }} empty="No certificate: TLS is passed through." />
    <h2>Sources of routes</h2>
    <${Records} caption="Sources" rows=${sources?.sources ?? []} empty="Routes come from the configuration alone." />
    <h2>More</h2>
    <ul>
      <li><a href="/api/v1/openapi.json">Description of the API</a>, <a href="/metrics">metrics</a></li>
      <li><code>signalbox doctor</code> says what this machine can do, <code>signalbox explain</code> why a connection goes where it goes</li>
      <li>These pages use <a href="vendor/preact.LICENSE">Preact</a> (MIT), <a href="vendor/htm.LICENSE">htm</a> (Apache-2.0) and <a href="vendor/uplot.LICENSE">uPlot</a> (MIT)</li>
    </ul>`;
}
