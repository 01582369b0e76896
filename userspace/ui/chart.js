// A line chart of the last two minutes (uPlot), with a sentence and a table for those who do not see it.

import { bits, clock } from "./format.js";
import { live } from "./live.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

/** Steps of an axis that counts: no half connection. */
const WHOLE = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((n) => n * 10 ** power)).flat();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Times in seconds, padded so that the axis always spans two minutes. */
function padded(at, lists) {
  const missing = 120 - at.length;
  if (missing <= 0) return [at.map((t) => t / 1000), ...lists];
  const first = at[0] ?? Date.now();
  const before = Array.from({ length: missing }, (_, i) => (first - (missing - i) * 1000) / 1000);
  const nothing = Array(missing).fill(null);
  return [[...before, ...at.map((t) => t / 1000)], ...lists.map((list) => [...nothing, ...list])];
}

function options(element, series, show, height) {
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: Math.max(120, element.clientWidth),
    height,
    legend: { show: false },
    padding: [8, 30, 0, 0],
    cursor: { points: { size: 5 }, drag: { x: false, y: false } },
    scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
    axes: [
      { ...axis, space: 80, size: 22, values: (_, at) => at.map((t) => clock(t * 1000)) },
      { ...axis, size: show === bits ? 78 : 52, space: 22, incrs: show === bits ? undefined : WHOLE, values: (_, at) => at.map(show) },
    ],
    series: [{}, ...series.map((line) => ({ label: line.name, stroke: colour(line.colour), width: 1.6, fill: line.fill ? `${colour(line.colour)}22` : undefined, points: { show: false } }))],
  };
}

/** `series`: lines, each with name, colour (of a custom property) and a list of values beside `live.at`. */
export function Chart({ title, series, show = String, height = 130 }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [asTable, setAsTable] = useState(false);
  const names = series.map((line) => line.name).join();
  useEffect(() => {
    if (asTable) return undefined;
    const element = box.current;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(element, series, show, height), padded(live.at, series.map((line) => line.values)), element);
    };
    draw();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(120, element.clientWidth), height }));
    resized.observe(element);
    addEventListener("signalbox-theme", draw);
    return () => {
      resized.disconnect();
      removeEventListener("signalbox-theme", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names, height, asTable]);
  useEffect(() => plot.current?.setData(padded(live.at, series.map((line) => line.values))));
  const last = (line) => line.values.at(-1);
  const summary = series.map((line) => `${line.name} ${last(line) == null ? "unknown" : show(last(line))}`).join(", ");
  return html`<figure class="chart">
    <figcaption>
      <span class="title">${title}</span>
      ${series.map((line) => html`<span class="key"><i style=${{ background: `var(${line.colour})` }}></i>${line.name} <b>${last(line) == null ? "–" : show(last(line))}</b></span>`)}
      <button class="quiet" aria-pressed=${asTable} onClick=${() => setAsTable(!asTable)} title="Show ${title} as a ${asTable ? "chart" : "table"}">${asTable ? "chart" : "table"}</button>
    </figcaption>
    ${asTable
      ? html`<div class="scroll" tabindex="0" role="region" aria-label=${`${title}, as a table`}><table>
          <thead><tr><th scope="col">time</th>${series.map((line) => html`<th scope="col">${line.name}</th>`)}</tr></thead>
          <tbody>${live.at.map((t, i) => html`<tr><td>${clock(t)}</td>${series.map((line) => html`<td>${line.values[i] == null ? "–" : show(line.values[i])}</td>`)}</tr>`).reverse()}</tbody>
        </table></div>`
      : html`<div class="plot" ref=${box} role="img" aria-label=${`${title}: now ${summary}`}></div>`}
  </figure>`;
}
