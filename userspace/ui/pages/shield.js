import { followAgain, read } from "../api.js";
import { clock } from "../format.js";
import { live, usePolled } from "../live.js";
import { Action, Failure, Table, useToken } from "../parts.js";
import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { Records, Troubles } from "./records.js";

/** Drops that are shown. */
const MAX_DROPS = 200;

/** Samples of dropped packets, the newest first, as they happen. */
function useDrops() {
  const [drops, setDrops] = useState([]);
  useEffect(() => {
    const ends = new AbortController();
    const keep = (more) => setDrops((before) => [...more, ...before].slice(0, MAX_DROPS));
    const load = async () => setDrops((await read(`/api/v1/drops?limit=${MAX_DROPS}`)).drops.reverse());
    followAgain("/api/v1/drops/follow", ends.signal, (kind, data) => {
      if (kind === "drop" && !live.paused) keep([JSON.parse(data)]);
      // A stream has begun, or has been too fast: what the balancer has kept is newer than what is shown.
      if (kind === "hello" || kind === "missed") load().catch(() => {});
    });
    return () => ends.abort();
  }, []);
  return drops;
}

/** Denies a client's address at all listeners and services. */
function Deny() {
  const [prefix, setPrefix] = useState("");
  if (!useToken()) return null;
  return html`<div class="row"><label>Deny <input value=${prefix} onInput=${(event) => setPrefix(event.target.value.trim())} placeholder="192.0.2.0/24" /></label>
    ${prefix ? html`<${Action} label=${`Deny ${prefix}`} method="POST" path="/api/v1/shield/prefixes/*" body=${{ deny: [prefix] }} />
      <${Action} label=${`Forget ${prefix}`} method="POST" path="/api/v1/shield/prefixes/*" body=${{ forget: [prefix] }} />` : null}</div>`;
}

export function Shield() {
  const { data, error } = usePolled("/api/v1/shield", 2000);
  const drops = useDrops();
  return html`<h1>Shield</h1>
    <p class="about">Packets that the kernel drops before a socket sees them.</p>
    <${Failure} error=${error} /><${Troubles} list=${data?.troubles} />
    <${Records} caption="Guarded listeners and services" rows=${data?.guards ?? []} empty="Nothing is shielded: add shield: {} to a listener or service." />
    <${Deny} />
    <h2>Dropped packets <small>samples, live</small></h2>
    <${Table} caption="Dropped packets" rows=${drops} empty="None so far."
      columns=${[
        ["Time", (drop) => clock(drop.time_ms)],
        ["Source", (drop) => html`<code>${drop.source}</code>`],
        ["Destination", (drop) => html`<code>${drop.destination}</code>`],
        ["Guard", (drop) => drop.guard],
        ["Reason", (drop) => drop.reason],
        ["Protocol", (drop) => `${drop.protocol} ${drop.flags}`],
        ["Bytes", (drop) => drop.bytes, { number: true }],
        ["Interface", (drop) => drop.interface],
      ]} />`;
}
