// The figures of the last two minutes, kept up to date by /api/v1/live. One stream feeds all pages.

import { RETRY_INTERVAL, follow, read, token } from "./api.js";
import { useEffect, useState } from "./vendor/preact-htm.js";

/** Samples that are kept: as many as the balancer keeps. */
export const MAX_SAMPLES = 120;
/** Milliseconds without a sample after which the figures count as stale. */
const STALE_TIMEOUT = 3000;

/** Places of a host's figures in a sample. */
export const FIGURE = { active: 0, total: 1, refused: 2, bytesIn: 3, bytesOut: 4, health: 5 };

const viewers = new Set();
let stream = null;

/** All that is known: times and overall figures side by side, hosts each with as many lists of figures. */
export const live = { at: [], overall: [], hosts: [], hello: null, error: null, locked: false, received: 0, missed: 0, paused: false };

/** Counters at the moment of the last reset in this tab: pages subtract them. */
export const baseline = { overall: null, hosts: new Map() };

export const keyOf = (host) => `${host.cluster}/${host.name}/${host.address}`;

/** Begins to count from now, in this tab only. */
export function reset() {
  baseline.overall = live.overall.at(-1) ?? null;
  baseline.hosts = new Map(live.hosts.map((host) => [keyOf(host), host.figures.at(-1)]));
  notify();
}

const notify = () => viewers.forEach((viewer) => viewer());

/** Seconds since the last sample, once that is long ago; 0 while figures are fresh. */
export function staleSeconds() {
  const silent = performance.now() - live.received;
  return live.received && silent > STALE_TIMEOUT ? Math.round(silent / 1000) : 0;
}

function trim(list) {
  if (list.length > MAX_SAMPLES) list.splice(0, list.length - MAX_SAMPLES);
}

function add(sample) {
  // The first sample of a stream is the last one of the history, unless a second has passed between them.
  const again = sample.hosts && sample.at === live.at.at(-1);
  if (sample.hosts) {
    const known = new Map(live.hosts.map((host) => [keyOf(host), host]));
    const blank = () => live.at.map(() => null);
    live.hosts = sample.hosts.map((host) => {
      const key = keyOf(host);
      const before = known.get(key);
      // A host that still drains may have a successor of the same name: each has figures of its own.
      known.delete(key);
      return before ?? { ...host, figures: blank() };
    });
    live.leftOut = sample.left_out_hosts;
  }
  if (again) return;
  live.at.push(sample.at);
  live.overall.push(sample.overall);
  trim(live.at);
  trim(live.overall);
  live.hosts.forEach((host, at) => {
    host.figures.push(sample.figures[at] ?? host.figures.at(-1) ?? null);
    trim(host.figures);
  });
}

async function load() {
  const past = await read("/api/v1/history?hosts=all");
  Object.assign(live, { at: past.at, overall: past.overall, hosts: past.hosts, leftOut: past.left_out_hosts });
}

async function run(signal) {
  while (!signal.aborted) {
    try {
      await load();
      await follow("/api/v1/live", signal, (kind, data) => {
        live.error = null;
        live.locked = false;
        if (kind === "hello") {
          const hello = JSON.parse(data);
          // Counters of another process begin at zero.
          if (live.hello && live.hello.pid !== hello.pid) Object.assign(baseline, { overall: null, hosts: new Map() });
          live.hello = hello;
        } else if (kind === "missed") {
          live.missed += Number(data);
        } else {
          live.received = performance.now();
          add(JSON.parse(data));
        }
        if (!live.paused) notify();
      });
      throw new Error("the balancer has ended the stream");
    } catch (error) {
      if (signal.aborted) return;
      live.error = error.message;
      live.locked = error.status === 401;
      notify();
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_INTERVAL));
  }
}

/** Opens the stream while the tab is visible, so that hidden tabs cost nothing. */
export function start() {
  const follow = () => {
    if (document.hidden) {
      stream?.abort();
      stream = null;
    } else if (!stream) {
      stream = new AbortController();
      run(stream.signal);
    }
  };
  document.addEventListener("visibilitychange", follow);
  setInterval(() => (staleSeconds() || live.error) && notify(), 1000);
  follow();
}

/** Draws the component again with each sample. */
export function useLive() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const viewer = () => redraw((n) => n + 1);
    viewers.add(viewer);
    return () => viewers.delete(viewer);
  }, []);
  return live;
}

/** Reads a path of the API now and every `interval` milliseconds while the tab is visible. */
export function usePolled(path, interval = 2000) {
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    let ended = false;
    let timer = 0;
    const round = async () => {
      const isLocked = live.locked && !token();
      if (!document.hidden && !live.paused && !isLocked) {
        try {
          const data = await read(path);
          if (!ended) setState({ data, error: null, at: Date.now() });
        } catch (error) {
          if (!ended) setState((before) => ({ ...before, error: error.message }));
        }
      }
      if (!ended) timer = setTimeout(round, interval);
    };
    round();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [path, interval]);
  return state;
}
