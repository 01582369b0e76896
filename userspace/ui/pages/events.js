import { followAgain } from "../api.js";
import { clock } from "../format.js";
import { live } from "../live.js";
import { Failure, Search, Table } from "../parts.js";
import { html, useEffect, useState } from "../vendor/preact-htm.js";

/** Events that are kept. */
const MAX_EVENTS = 500;

export function Events() {
  const [events, setEvents] = useState([]);
  const [error, setError] = useState(null);
  const [wanted, setWanted] = useState("");
  useEffect(() => {
    const ends = new AbortController();
    const add = (kind, data) => {
      setError(null);
      if (!live.paused) setEvents((before) => [{ at: new Date(), kind, data }, ...before].slice(0, MAX_EVENTS));
    };
    followAgain("/api/v1/events", ends.signal, add, setError);
    return () => ends.abort();
  }, []);
  const rows = events.filter((event) => `${event.kind} ${event.data}`.includes(wanted));
  return html`<header class="row"><h1>Events</h1><${Search} label="Filter" value=${wanted} onInput=${setWanted} /></header>
    <p class="about">Changes since this page was opened.</p>
    <${Failure} error=${error} />
    <${Table} caption="Events" rows=${rows} empty="Nothing has changed yet."
      columns=${[["Time", (event) => clock(event.at)], ["Kind", (event) => event.kind], ["What", (event) => html`<code class="wrap">${event.data}</code>`]]} />`;
}
