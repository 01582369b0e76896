import { dateTime, seconds, short } from "../format.js";
import { usePolled } from "../live.js";
import { Action, Failure, State, Table, useToken } from "../parts.js";
import { read } from "../api.js";
import { html, useState } from "../vendor/preact-htm.js";

/** Names that are listed of a migration. */
const MAX_NAMES = 20;

/** Each state's look and words. */
const STATES = {
  running: ["good", "running"],
  paused: ["warn", "paused"],
  rolling_back: ["bad", "rolling back"],
  aborting: ["warn", "aborting"],
  completed: ["good", "completed"],
  rolled_back: ["bad", "rolled back"],
  aborted: ["idle", "aborted"],
};

const isEnded = (migration) => migration.ended != null;
const stepName = (percent) => (percent ? `${percent} %` : "testers");
const list = (text) => text.split(/[\s,]+/).filter(Boolean);

/** Steps side by side: held ones filled, the current one marked. */
function Progress({ migration }) {
  const { steps } = migration.plan;
  const held = migration.state === "completed" ? steps.length : migration.step;
  const now = isEnded(migration) ? STATES[migration.state][1] : `step ${migration.step + 1} of ${steps.length}`;
  return html`<ol class="steps" aria-label=${`Steps: ${now}`}>${steps.map((percent, i) => {
    const is = i < held ? "held" : i === held && !isEnded(migration) ? "current" : "";
    return html`<li class=${is} aria-current=${is === "current" ? "step" : null}>${stepName(percent)}</li>`;
  })}</ol>`;
}

/** End of a bucket of times, in seconds: see `Times` of the API. */
const endOf = (bucket) => (4 + (bucket % 4)) * 2 ** (Math.floor(bucket / 4) + 5) / 1e6;

/** A time that a share of all times, as pairs of a bucket and its number, does not exceed. */
function percentile(times, share) {
  const wanted = share * times.reduce((sum, [, number]) => sum + number, 0);
  let seen = 0;
  const found = times.find(([, number]) => (seen += number) >= wanted);
  return found ? seconds(endOf(found[0])) : "–";
}

const median95 = (times) => (times?.length ? `${percentile(times, 0.5)}, ${percentile(times, 0.95)}` : "–");
const part = (faults, all) => (all ? `${short(faults)} of ${short(all)}` : "–");

/** Figures that the guards compare, of each step and cluster. */
function Figures({ migration }) {
  const { from, to } = migration.plan;
  const rows = migration.steps.flatMap((step) => [
    { step: stepName(step.percent), held: (step.ended ?? Date.now()) - step.since, cluster: to, of: step.new },
    { step: "", held: null, cluster: from, of: step.old },
  ]);
  return html`<${Table} caption=${`Figures of migration ${migration.id}`} rows=${rows} empty="No step is in force yet."
    columns=${[
      ["Step", (row) => row.step],
      ["Held", (row) => (row.held == null ? "" : seconds(Math.max(0, row.held) / 1000)), { number: true }],
      ["Cluster", (row) => row.cluster],
      ["Connects", (row) => short(row.of.connects), { number: true }],
      ["Failed connects", (row) => part(row.of.connect_failures, row.of.connects + row.of.connect_failures), { number: true }],
      ["Broken connections", (row) => part(row.of.flows_broken, row.of.flows_ended), { number: true }],
      ["5xx", (row) => part(row.of.server_errors, row.of.answers), { number: true }],
      ["Connect (median, p95)", (row) => median95(row.of.connect_times), { number: true }],
      ["First byte (median, p95)", (row) => median95(row.of.first_byte_times), { number: true }],
    ]} />`;
}

/** The report, read when somebody opens it. */
function Report({ id }) {
  const [text, setText] = useState(null);
  const open = async (event) => {
    if (!event.target.open) return;
    try {
      setText(await read(`/api/v1/migrations/${id}/report`));
    } catch (error) {
      setText(error.message);
    }
  };
  return html`<details onToggle=${open}><summary>Report</summary><pre tabindex="0">${text ?? "…"}</pre></details>`;
}

function Migration({ migration }) {
  const { id, plan } = migration;
  const names = Object.keys(migration.names);
  const [is, words] = STATES[migration.state] ?? ["idle", migration.state];
  const order = (label, path) => html`<${Action} label=${label} method="POST" path=${`/api/v1/migrations/${id}/${path}`} />`;
  return html`<article class="card migration">
    <h2>${plan.from} → ${plan.to} <small>migration ${id}, ${dateTime(migration.started)}${migration.by ? `, by ${migration.by}` : ""}</small></h2>
    <p><${State} is=${is}>${words}<//>${migration.reason ? html` <span class="reason">${migration.reason}</span>` : null}</p>
    ${!isEnded(migration) && migration.waits_for?.length ? html`<p class="trouble warn" role="status">Waits for ${migration.waits_for.join(", ")}</p>` : null}
    <${Progress} migration=${migration} />
    <p class="about">${names.length} ${names.length === 1 ? "name" : "names"}: ${names.slice(0, MAX_NAMES).join(", ")}${names.length > MAX_NAMES ? " …" : ""}${plan.testers?.length ? `; testers ${plan.testers.join(", ")}` : ""}</p>
    <${Figures} migration=${migration} />
    ${isEnded(migration) ? null : html`<p class="row">
      ${migration.state === "running" ? order("Pause migration", "pause") : null}
      ${migration.state === "paused" ? order("Resume migration", "resume") : null}
      ${["running", "paused"].includes(migration.state) ? order("Abort migration", "abort") : null}</p>`}
    <${Report} id=${id} />
  </article>`;
}

/** A new migration: what would move can be asked for first. */
function Begin() {
  const [form, setForm] = useState({ names: "", from: "", to: "", testers: "", steps: "5,25,50,100", hold: 60, path: "/" });
  const [plan, setPlan] = useState(null);
  if (!useToken()) return html`<p class="empty">Enter the token (above) to begin, pause, resume or abort a migration.</p>`;
  const field = (label, key, more = {}) => html`<label>${label} <input value=${form[key]} ...${more}
    onInput=${(event) => { setForm({ ...form, [key]: event.target.value }); setPlan(null); }} /></label>`;
  const body = {
    from: form.from.trim(),
    to: form.to.trim(),
    names: list(form.names),
    testers: list(form.testers),
    steps: list(form.steps).map(Number),
    hold: Number(form.hold),
    probe: Boolean(form.path.trim()),
    probe_path: form.path.trim() || "/",
  };
  const isWhole = body.from && body.to && body.names.length && body.steps.length;
  return html`<section class="card"><h2>Begin</h2>
    <div class="row">
      ${field("Names", "names", { placeholder: "app1.example.com" })}
      ${field("From", "from", { placeholder: "v1" })}
      ${field("To", "to", { placeholder: "v2" })}
      ${field("Testers", "testers", { placeholder: "10.9.0.0/16" })}
      ${field("Steps in percent", "steps")}
      ${field("Seconds at each", "hold", { type: "number", min: "0" })}
      ${field("Path of probes", "path", { placeholder: "no probes" })}
    </div>
    ${isWhole ? html`<p class="row">
      <${Action} label="Try" method="POST" path="/api/v1/migrations" body=${{ ...body, dry_run: true }} done=${(answer) => setPlan(answer.migration)} />
      <${Action} label="Begin migration" method="POST" path="/api/v1/migrations" body=${body} done=${() => setPlan(null)} /></p>` : null}
    ${plan ? html`<p role="status">Would move ${Object.keys(plan.names).join(", ")} in steps of ${plan.plan.steps.map(stepName).join(", ")}, each held ${seconds(plan.plan.hold_ms / 1000)}.</p>` : null}
  </section>`;
}

export function Migrate() {
  const { data, error } = usePolled("/api/v1/migrations", 1000);
  const all = [...(data?.migrations ?? [])].reverse();
  return html`<h1>Migrate</h1>
    <p class="about">Names move from one cluster to another in steps. Guards watch real traffic, and roll the migration back if the new cluster serves worse.</p>
    <${Failure} error=${error} />
    <${Begin} />
    ${data && !all.length ? html`<p class="empty">There has been no migration.</p>` : null}
    ${all.map((migration) => html`<${Migration} key=${migration.id} migration=${migration} />`)}`;
}
