import { Chart } from "../chart.js";
import { bits, rates, seconds, short } from "../format.js";
import { baseline, reset, useLive, usePolled } from "../live.js";
import { Failure, Figure, State, Table } from "../parts.js";
import { html } from "../vendor/preact-htm.js";

/** What is wrong, each with the place that says more. */
function troubles(status) {
  if (!status) return [];
  const reload = status.last_reload;
  return [
    ...status.not_ready.map((text) => ({ text, where: "signalbox status", is: "bad" })),
    ...status.missing_features.map((one) => ({ text: typeof one === "string" ? one : Object.values(one).join(": "), where: "signalbox doctor", is: "bad" })),
    ...status.degraded.map(({ feature, why }) => ({ text: `${feature}: ${why}`, where: "signalbox doctor", is: "warn" })),
    ...(reload && !reload.ok ? [{ text: `The last change of the configuration was refused: ${reload.error ?? ""}`, where: "signalbox check", is: "bad" }] : []),
  ];
}

export function Overview() {
  const live = useLive();
  const { data: status, error } = usePolled("/api/v1/status", 3000);
  const of = (name) => live.overall.map((sample) => sample[name]);
  const now = live.overall.at(-1);
  const bare = (name) => (now ? now[name] - (baseline.overall?.[name] ?? 0) : 0);
  const per = (name) => rates(live.at, of(name));
  const [fresh, refused, inwards, outwards] = ["total", "refused", "bytes_in", "bytes_out"].map(per);
  const last = (list) => list.at(-1) ?? 0;
  const tier = (name) => live.overall.map((sample) => sample.tiers[name]);
  const reasons = Object.entries(now?.not_cut ?? {}).sort((a, b) => b[1] - a[1]);
  const list = troubles(status);
  return html`
    <header class="row"><h1>Overview</h1>
      ${status && html`<p>${status.state === "serving" ? html`<${State} is=${status.ready ? "good" : "warn"}>${status.ready ? "Serving; ready" : "Serving; not ready"}<//>` : html`<${State} is="warn">Draining<//>`}${" "}
        · ${status.routes} routes · steering by ${status.steering} · up ${seconds(status.uptime_seconds)}</p>`}
      <button class="quiet" onClick=${reset} title="Counts begin at zero in this tab; the balancer's counters stay">Reset stats</button>
    </header>
    <${Failure} error=${error} />
    <section aria-live="polite" aria-label="Troubles">
      ${list.map((one) => html`<p class=${`trouble ${one.is}`}><${State} is=${one.is}>${one.text}<//> <code>${one.where}</code></p>`)}
    </section>
    <dl class="figures">
      <${Figure} name="Active connections" value=${short(now?.active ?? 0)} note=${status ? ` of ${short(status.connections.max)}` : ""} />
      <${Figure} name="New" value=${`${short(last(fresh))}/s`} note=${` ${short(bare("total"))} in all`} />
      <${Figure} name="Refused" value=${`${short(last(refused))}/s`} note=${` ${short(bare("refused"))} in all`} is=${last(refused) ? "warn" : ""} />
      <${Figure} name="Traffic" value=${bits(last(inwards) + last(outwards))} />
      <${Figure} name="Hosts" value=${now ? `${now.usable_hosts} usable` : "–"} note=${now?.unhealthy_hosts ? ` ${now.unhealthy_hosts} unhealthy` : ""} is=${now?.unhealthy_hosts ? "bad" : ""} />
    </dl>
    <div class="charts">
      <${Chart} title="Overall connections" show=${short} series=${[{ name: "active", colour: "--line-1", values: of("active"), fill: true }]} />
      <${Chart} title="Per second" show=${short} series=${[{ name: "new", colour: "--line-2", values: fresh }, { name: "refused", colour: "--line-3", values: refused }]} />
      <${Chart} title="Traffic" show=${bits} series=${[{ name: "from clients", colour: "--line-2", values: inwards }, { name: "to clients", colour: "--line-1", values: outwards }]} />
      <${Chart} title="Hosts" show=${short} series=${[{ name: "usable", colour: "--line-2", values: of("usable_hosts"), fill: true }, { name: "unhealthy", colour: "--line-3", values: of("unhealthy_hosts") }]} />
      <${Chart} title="Connections by tier" show=${short} series=${["cut", "sockmap", "splice", "copy"].map((name, i) => ({ name, colour: `--line-${i + 1}`, values: tier(name) }))} />
    </div>
    <h2>Why connections were not cut</h2>
    <${Table} caption="Reasons why connections were not cut, since the start" rows=${reasons} empty="All have been cut so far."
      columns=${[["Reason", ([name]) => html`<code>${name}</code>`], ["Connections", ([, n]) => short(n), { number: true }]]} />`;
}
