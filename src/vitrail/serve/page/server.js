// Everything that is asked of the server, and what it may say instead of an answer.

const TRIES = 30; // large models take a while to be read
const LONGEST_WAIT = 60;
const KEPT = "vitrail-token";

// The server has said no, in one sentence.
export class Refused extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

// There was no answer at all.
export class Unreachable extends Error {}

export function useToken(token) {
  sessionStorage.setItem(KEPT, token);
}

export const hasToken = () => sessionStorage.getItem(KEPT) !== null;

export async function about() {
  return (await ask("about", {})).json();
}

let asked = ""; // the decision that shall answer; empty for the one in use
let heard = () => {}; // of the name of the decision that has answered

export function useDecision(name) {
  asked = name;
}

export function hearDecision(listener) {
  heard = listener;
}

// All decisions, and the scores of the validation pictures, from which the page counts what they cost.
export async function decisions() {
  return (await ask("decisions", {})).json();
}

// Rows of several pictures, in order: a row of predictions with its notes, or {path, error, status}.
export async function predict(pictures, signal, waiting) {
  const body = new FormData();
  for (const picture of pictures) body.append("pictures", picture.file, picture.name);
  const query = asked ? `?${new URLSearchParams({ decision: asked })}` : "";
  const response = await ask(`predict${query}`, { method: "POST", body, signal }, waiting);
  const { rows } = await response.json();
  heard(response.headers.get("X-Decision"));
  if (!Array.isArray(rows) || rows.length !== pictures.length) {
    throw new Refused(`The server answered ${rows?.length ?? "no"} rows to ${pictures.length} pictures.`, 500);
  }
  return rows;
}

// The map of one picture; target "" leaves the class to the server.
export async function explain(picture, method, target, signal, waiting) {
  const query = new URLSearchParams({ method });
  if (target) query.set("target", target);
  if (asked) query.set("decision", asked);
  const headers = { "Content-Type": picture.file.type || "application/octet-stream" };
  const request = { method: "POST", body: picture.file, headers, signal };
  return (await ask(`explain?${query}`, request, waiting)).json();
}

// One request; while the server is busy, again when it says so.
async function ask(what, request, waiting = () => {}) {
  for (let left = TRIES; ; left -= 1) {
    const response = await send(what, request);
    if (response.ok) return response;
    const busy = response.status === 429 || response.status === 503;
    if (!busy || left <= 1) throw new Refused(await sentenceOf(response), response.status);
    const seconds = secondsToWait(response.headers.get("Retry-After"));
    waiting(seconds);
    await pause(seconds, request.signal);
    waiting(0);
  }
}

async function send(what, request) {
  const headers = new Headers(request.headers);
  const token = sessionStorage.getItem(KEPT);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  try {
    return await fetch(new URL(`../${what}`, import.meta.url), { ...request, headers, cache: "no-store" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Unreachable("The server does not answer. Is it still running, and this machine connected to it?");
  }
}

async function sentenceOf(response) {
  try {
    const { error } = await response.json();
    if (error) return String(error);
  } catch {
    // not JSON: the status alone is what we know
  }
  return `The server answered ${response.status} ${response.statusText}`.trim() + ".";
}

function secondsToWait(header) {
  const asked = /^\d+(\.\d+)?$/.test(header ?? "") ? Number(header) : (Date.parse(header ?? "") - Date.now()) / 1000;
  return Math.min(LONGEST_WAIT, Math.max(0.2, Number.isFinite(asked) ? asked : 2));
}

function pause(seconds, signal) {
  return new Promise((done, failed) => {
    const stop = () => {
      clearTimeout(timer);
      failed(new DOMException("stopped", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      done();
    }, seconds * 1000);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
