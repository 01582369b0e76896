// Requests to the API. The token for changes lives in this tab's session and nowhere else.

const TOKEN_KEY = "signalbox.token";

/** Longest time that an answer may take, in milliseconds. */
const ANSWER_TIMEOUT = 10_000;

export const token = () => sessionStorage.getItem(TOKEN_KEY) ?? "";

/** Keeps a token for this tab, or forgets it. */
export function setToken(value) {
  if (value) sessionStorage.setItem(TOKEN_KEY, value);
  else sessionStorage.removeItem(TOKEN_KEY);
  dispatchEvent(new Event("signalbox-token"));
}

const headers = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

/** Tries a token by a change that changes nothing, and keeps it if the balancer takes it. */
export async function unlock(value) {
  const tried = { Authorization: `Bearer ${value}`, "Content-Type": "application/json" };
  const body = JSON.stringify({ dry_run: true });
  await answer(await fetch("/api/v1/weights", { method: "PUT", headers: tried, body, signal: AbortSignal.timeout(ANSWER_TIMEOUT) }));
  setToken(value);
}

async function answer(response) {
  const type = response.headers.get("content-type") ?? "";
  const body = type.includes("json") ? await response.json() : await response.text();
  if (response.ok) return body;
  const detail = body?.detail ?? body?.error ?? (typeof body === "string" ? body : "");
  throw Object.assign(new Error(`${body?.title ?? response.statusText}: ${detail}`), { status: response.status });
}

/** Reads JSON. */
export async function read(path) {
  return answer(await fetch(path, { headers: headers(), signal: AbortSignal.timeout(ANSWER_TIMEOUT) }));
}

/** Changes something; returns the answer. */
export async function change(method, path, body) {
  return answer(
    await fetch(path, {
      method,
      headers: { ...headers(), "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_TIMEOUT),
    }),
  );
}

/** The same change as a command for a shell on the balancer. */
export function asCurl(method, path, body) {
  const quote = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const data = body === undefined ? "" : ` -d ${quote(JSON.stringify(body))}`;
  return `curl --unix-socket /run/signalbox/admin.sock -X ${method}${data} ${quote(`http://signalbox${path}`)}`;
}

/** Milliseconds until a lost stream is opened again. */
export const RETRY_INTERVAL = 1000;

/** Follows a stream until `signal` aborts, and opens it again when it is lost; `failed` gets the reason. */
export async function followAgain(path, signal, each, failed = () => {}) {
  while (!signal.aborted) {
    try {
      await follow(path, signal, each);
    } catch (error) {
      if (!signal.aborted) failed(error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_INTERVAL));
  }
}

/** Reads server-sent events until `signal` aborts or the stream ends; `each` gets their kind and their data. */
export async function follow(path, signal, each) {
  const response = await fetch(path, { headers: headers(), signal });
  if (!response.ok) await answer(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const field = (name) => event.split("\n").filter((l) => l.startsWith(`${name}: `)).map((l) => l.slice(name.length + 2));
      const data = field("data").join("\n");
      if (data) each(field("event")[0] ?? "message", data);
    }
  }
}
