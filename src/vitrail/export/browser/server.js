// In place of a server: the model lies in this page, and a worker answers. Nothing is sent anywhere.

import { findGraphics, openWorker, prepare, readPart } from "./parts.js";
import { rowOf } from "./rows.js";

// The model has said no, in one sentence.
export class Refused extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

// The model cannot be read.
export class Unreachable extends Error {}

export const hasToken = () => true;

export const useToken = () => {};

// A page holds the decision that it was written with, and no other.
export const useDecision = () => {};

export const hearDecision = () => {};

export const decisions = async () => ({ versions: [], validation: {} });

const PROCESSOR = "ort-wasm-simd-threaded.wasm";

let described = null;
let worker = null;
let asked = 0;
const waiting = new Map(); // number of a question -> what becomes of it

export async function about() {
  described = JSON.parse(document.getElementById("described").textContent);
  await prepare();
  try {
    const { gpu, why } = await findGraphics();
    const found = await open(gpu).catch((problem) => {
      if (!gpu) throw problem;
      worker.terminate();
      return open(null).then((plain) => ({ ...plain, why: `its engine does not start (${problem.message})` }));
    });
    described.engine = engineOf({ why, ...found });
  } catch (problem) {
    throw new Unreachable(`The model cannot be read: ${problem.message}`);
  }
  return described;
}

// Starts the worker with the model; gpu: the file of the engine that knows graphics processors, or nothing.
async function open(gpu) {
  worker = openWorker();
  worker.addEventListener("message", ({ data }) => receive(data));
  worker.addEventListener("error", (event) => failed(event.message || "its worker does not start"));
  const [model, wasm] = await Promise.all([readPart("model.onnx"), readPart(gpu || PROCESSOR)]);
  return ask("start", { model, wasm, gpu: Boolean(gpu), described: described.spec }, [model, wasm]);
}

// Which engine answers, and why no faster one.
function engineOf({ threads, used, processor, graphics, why }) {
  const times = graphics ? `: ${graphics.toFixed(1)} ms a picture, ${processor.toFixed(1)} ms on the processor` : "";
  if (used) return `on the graphics processor${times}.`;
  const disk = location.protocol === "file:";
  const one = disk ? "a page from the disk has no more" : "more need https, or the headers COOP and COEP of its server";
  const many = self.crossOriginIsolated ? `in ${threads} ${threads === 1 ? "thread" : "threads"}` : `in one thread: ${one}`;
  return `on the processor, ${many}. Not on a graphics processor: ${why}${times}.`;
}

// Rows of several pictures, in order: a row of predictions with its notes, or {path, error, status}.
export async function predict(pictures, signal) {
  const results = await ask("predict", { files: pictures.map((picture) => picture.file) }, [], signal);
  return results.map((result, place) => rowOf(result, pictures[place].name, described));
}

// The map of one picture; target "" leaves the class to the model.
export async function explain(picture, method, target, signal) {
  const names = described.task === "regression" ? described.columns : described.classes;
  const index = target ? names.indexOf(target) : null;
  const map = await ask("explain", { file: picture.file, target: index }, [], signal);
  const numbers = map.values.flat();
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (low === 0 && high === 0) throw new Refused("The map is zero everywhere: no block changes this score.", 422);
  const patches = map.block[0] / described.spec.patch[0];
  const block = patches === 1 ? "a patch" : `a block of ${patches} × ${patches} patches`;
  return {
    method,
    caption: `occlusion · pixels, ${block} covered at a time. How far this score falls without it.`,
    target: names[map.index],
    scale: "signed",
    rows: map.rows,
    columns: map.columns,
    values: map.values,
    low,
    high,
    height: map.seen.height,
    width: map.seen.width,
    aspect: map.aspect,
    unit: "fall of the score",
    patch: map.block,
    picture: drawn(map.seen),
    artefacts: [],
  };
}

function drawn({ pixels, height, width }) {
  const sheet = document.createElement("canvas");
  sheet.width = width;
  sheet.height = height;
  sheet.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  return sheet.toDataURL("image/png");
}

function ask(kind, question, moved = [], signal = null) {
  asked += 1;
  const id = asked;
  return new Promise((done, refused) => {
    waiting.set(id, { done, refused });
    signal?.addEventListener("abort", () => {
      worker.postMessage({ id, kind: "stop" });
      receive({ id, error: "Stopped.", status: 499 });
    });
    worker.postMessage({ id, kind, ...question }, moved);
  });
}

function receive({ id, answer, error, status }) {
  const one = waiting.get(id);
  if (!one) return; // stopped in the meantime
  waiting.delete(id);
  if (error === undefined) one.done(answer);
  else one.refused(new Refused(error, status));
}

function failed(sentence) {
  for (const id of [...waiting.keys()]) receive({ id, error: sentence, status: 500 });
}
