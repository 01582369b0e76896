import { Chart } from "../chart.js";
import { bits, rates, short } from "../format.js";
import { FIGURE, baseline, keyOf, reset, useLive, usePolled } from "../live.js";
import { Action, Failure, Search, State, Table } from "../parts.js";
import { html, useEffect, useRef, useState } from "../vendor/preact-htm.js";

/** Height of charts that have not been drawn yet, in pixels. */
const UNDRAWN_HEIGHT = 150;

/** Draws what `children` returns only while it is on the screen, or near: a page may have thousands of charts. */
function OnScreen({ children }) {
  const box = useRef(null);
  const height = useRef(UNDRAWN_HEIGHT);
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const changed = (entries) => {
      // Several changes may come at once: the last one holds.
      const isSeen = entries.at(-1).isIntersecting;
      if (!isSeen) height.current = box.current?.offsetHeight || height.current;
      setSeen(isSeen);
    };
    // A window's height above and below is drawn too, so that charts are there when they are scrolled to.
    const observer = new IntersectionObserver(changed, { rootMargin: "100% 0px" });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return html`<div ref=${box} style=${{ minHeight: `${seen ? 0 : height.current}px` }}>${seen ? children() : null}</div>`;
}

const isUnresolved = (detail) => detail?.health === "unresolved";

/** A host's condition: the API's `state`, or its health in the last figures, which are newer. */
function healthOf(host, detail) {
  switch (detail?.state) {
    case "draining": return ["warn", "draining"];
    case "unresolved": return ["bad", "unresolved"];
    case "out_of_rotation": return ["warn", `out of rotation (${detail.out_of_rotation})`];
    case "ejected": return ["bad", "ejected"];
    case "own_listener": return ["bad", "a listener of this balancer"];
  }
  const health = host.figures.at(-1)?.[FIGURE.health];
  return [["idle", "unknown"], ["good", "healthy"], ["bad", "unhealthy"]][health ?? 0];
}

/** A host's state from its last figures and what the API says of it. */
function stateOf(host, detail) {
  let [is, text] = healthOf(host, detail);
  if (detail?.state === "draining") return [is, text];
  if (detail?.backup) text += ", backup";
  if (detail?.not_resolved && !isUnresolved(detail)) {
    text += ", name not resolved";
    if (is !== "bad") is = "warn";
  }
  return [is, text];
}

/** The three charts of a host: total, active and refused connections; and its traffic. */
function Charts({ host, live }) {
  const list = (figure) => host.figures.map((figures) => figures?.[figure] ?? null);
  const since = (figure) => list(figure).map((n) => (n == null ? null : n - (baseline.hosts.get(keyOf(host))?.[figure] ?? 0)));
  const name = `${host.cluster}/${host.name}`;
  return html`<div class="charts three">
    <${Chart} title=${`Total connections: ${name}`} height=${100} show=${short} series=${[{ name: "total", colour: "--line-2", values: since(FIGURE.total) }]} />
    <${Chart} title=${`Active connections: ${name}`} height=${100} show=${short} series=${[{ name: "active", colour: "--line-1", values: list(FIGURE.active), fill: true }]} />
    <${Chart} title=${`Refused connections: ${name}`} height=${100} show=${short} series=${[{ name: "refused", colour: "--line-3", values: since(FIGURE.refused) }]} />
    <${Chart} title=${`Traffic: ${name}`} height=${100} show=${bits} series=${[
      { name: "from clients", colour: "--line-2", values: rates(live.at, list(FIGURE.bytesIn)) },
      { name: "to clients", colour: "--line-1", values: rates(live.at, list(FIGURE.bytesOut)) },
    ]} />
  </div>`;
}

export function Hosts() {
  const live = useLive();
  const { data, error } = usePolled("/api/v1/hosts", 2000);
  const [wanted, setWanted] = useState("");
  const [open, setOpen] = useState(new Set());
  const [all, setAll] = useState(false);
  const details = new Map((data?.hosts ?? []).map((host) => [keyOf(host), host]));
  // Hostnames without an address have no figures.
  const unresolved = (data?.hosts ?? []).filter(isUnresolved).map(({ cluster, name, address }) => ({ cluster, name, address, figures: [] }));
  const rows = [...live.hosts, ...unresolved].filter((host) => keyOf(host).includes(wanted.trim().toLowerCase()));
  const toggle = (key) => setOpen((before) => {
    const after = new Set(before);
    if (!after.delete(key)) after.add(key);
    return after;
  });
  const last = (host, figure) => host.figures.at(-1)?.[figure] ?? 0;
  const detail = (host) => details.get(keyOf(host));
  const columns = [
    ["Host", (host) => html`<button class="link" aria-expanded=${all || open.has(keyOf(host))} onClick=${() => toggle(keyOf(host))}>${host.name}</button>`],
    ["Cluster", (host) => host.cluster],
    ["State", (host) => { const [is, text] = stateOf(host, detail(host)); return html`<${State} is=${is}>${text}<//>`; }],
    ["Last check", (host) => {
      const { last_check, tls_fault } = detail(host) ?? {};
      return (last_check?.detail ?? "–") + (tls_fault ? `; TLS: ${tls_fault}` : "");
    }],
    ["Weight", (host) => detail(host)?.weight ?? "–", { number: true }],
    ["Active", (host) => short(last(host, FIGURE.active)), { number: true }],
    ["Total", (host) => short(last(host, FIGURE.total) - (baseline.hosts.get(keyOf(host))?.[FIGURE.total] ?? 0)), { number: true }],
    ["Refused", (host) => short(last(host, FIGURE.refused) - (baseline.hosts.get(keyOf(host))?.[FIGURE.refused] ?? 0)), { number: true }],
    ["", (host) => {
      if (isUnresolved(detail(host))) return null;
      const out = detail(host)?.out_of_rotation;
      return html`<${Action} label=${out ? "Into rotation" : "Out of rotation"} method="POST" path="/api/v1/rotations"
        body=${{ action: out ? "in" : "out", names: [`${host.cluster}/${host.name}`] }} />`;
    }],
  ];
  return html`
    <header class="row"><h1>Hosts</h1>
      <${Search} label="Filter" value=${wanted} onInput=${setWanted} />
      <button aria-pressed=${all} onClick=${() => setAll(!all)}>All charts</button>
      <button class="quiet" onClick=${reset}>Reset stats</button>
    </header>
    <${Failure} error=${error} />
    ${live.leftOut ? html`<p class="trouble warn">${live.leftOut} more hosts are not sampled.</p>` : null}
    <${Table} caption="Hosts" rows=${rows} columns=${columns} keyOf=${keyOf} empty="No host here."
      after=${(host) => ((all || open.has(keyOf(host))) && host.figures.length ? html`<tr class="detail" key=${`${keyOf(host)}#charts`}><td colspan=${columns.length}><${OnScreen}>${() => html`<${Charts} host=${host} live=${live} />`}<//></td></tr>` : null)} />`;
}
