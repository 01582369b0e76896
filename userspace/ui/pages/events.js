import { follow } from "../api.js";
import { clock } from "../format.js";
import { live } from "../live.js";
import { Failure, Search, Table } from "../parts.js";
import { html, useEffect, useState } from "../vendor/preact-htm.js";

/** Events that are kept, and milliseconds until a lost stream is opened again. */
const MAX_EVENTS = 500;
const RETRY_INTERVAL = 1000;

export function Events() {
  const [events, setEvents] = useState([]);
  const [error, setError] = useState(null);
  const [wanted, setWanted] = useState("");
  useEffect(() => {
    const ends = new AbortController();
    const run = async () => {
      while (!ends.signal.aborted) {
        try {
          await follow("/api/v1/events", ends.signal, (kind, data) => {
            setError(null);
            if (!live.paused) setEvents((before) => [{ at: new Date(), kind, data }, ...before].slice(0, MAX_EVENTS));
          });
        } catch (problem) {
          if (!ends.signal.aborted) setError(problem.message);
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY_INTERVAL));
      }
    };
    run();
    return () => ends.abort();
  }, []);
  const rows = events.filter((event) => `${event.kind} ${event.data}`.includes(wanted));
  return html`<header class="row"><h1>Events</h1><${Search} label="Filter" value=${wanted} onInput=${setWanted} /></header>
    <p class="about">What changes, from when this page was opened.</p>
    <${Failure} error=${error} />
    <${Table} caption="Events" rows=${rows} empty="Nothing has changed yet."
      columns=${[["Time", (event) => clock(event.at)], ["Kind", (event) => event.kind], ["What", (event) => html`<code class="wrap">${event.data}</code>`]]} />`;
}
