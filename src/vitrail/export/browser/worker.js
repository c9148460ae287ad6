// Decodes, resizes and answers pictures with ONNX Runtime, beside the page, so that the page stays alive meanwhile.

import { prepare } from "./decode.js";
import { Refusal } from "./refusal.js";
import { rint } from "./resize.js";
import { openRuntime } from "./runtime.js";

const BLOCKS = 64; // covered one after the other, at most
const FEW = 8; // pictures that are run together while blocks are covered
const THREADS = 4; // at most
const TRIALS = 3; // timed runs of one picture, after one that is not
const TOLERANCE = 1e-3; // of scores that two engines give, as a fraction of the largest, at least of 1

let ort = null;
let session = null;
let spec = null;
let runs = Promise.resolve(); // a session runs one batch at a time
const stopped = new Set(); // numbers of questions that are not to be answered any more

if (typeof self !== "undefined" && self.name !== "em-pthread") self.addEventListener("message", receive);

async function receive({ data }) {
  const { id, kind } = data;
  if (kind === "stop") {
    stopped.add(id);
    return;
  }
  try {
    self.postMessage({ id, answer: await { start, predict, explain }[kind](data) });
  } catch (problem) {
    self.postMessage({ id, error: problem.message || String(problem), status: problem.status ?? 500 });
  }
  stopped.delete(id);
}

// Opens the model, and says with how many threads, or how a graphics processor compares.
async function start({ model, wasm, gpu, described }) {
  spec = described;
  ort = await openRuntime(gpu);
  const threads = self.crossOriginIsolated ? Math.min(THREADS, navigator.hardwareConcurrency) : 1;
  Object.assign(ort.env.wasm, { wasmBinary: wasm, numThreads: threads });
  const open = (name) => ort.InferenceSession.create(new Uint8Array(model), { executionProviders: [name] });
  session = await open("wasm");
  return { threads, ...(gpu ? await compareEngines(open) : {}) };
}

// Takes the graphics processor where it gives the scores of the processor in less time. No session is released: that of
// the graphics processor would lose its constants with the other one.
async function compareEngines(open) {
  try {
    const graphics = await open("webgpu");
    const [ours, theirs] = [await trial(session), await trial(graphics)];
    const size = Math.max(1, ...ours.scores.map(Math.abs));
    const apart = Math.max(...ours.scores.map((score, place) => Math.abs(score - theirs.scores[place]) / size));
    const found = { processor: ours.time, graphics: theirs.time };
    if (!(apart <= TOLERANCE)) return { why: `it gives other scores, by ${apart.toPrecision(2)}` };
    if (theirs.time >= ours.time) return { ...found, why: "it takes longer" };
    session = graphics;
    return { ...found, used: true };
  } catch (problem) {
    return { why: `it does not run this model (${problem.message || problem})` };
  }
}

// Scores of a drawn picture, and the shortest time in milliseconds.
async function trial(engine) {
  const { height, width, channels, white } = spec;
  const values = new (spec.dtype === "uint8" ? Uint8Array : Uint16Array)(height * width * channels);
  values.forEach((_, place) => { values[place] = ((place * 2654435761) % 1024) / 1023 * white; });
  const images = new ort.Tensor(spec.dtype, values, [1, height, width, channels]);
  let [time, outputs] = [Infinity, null];
  for (let turn = 0; turn <= TRIALS; turn += 1) {
    const began = performance.now();
    outputs = await engine.run({ images });
    if (turn) time = Math.min(time, performance.now() - began);
  }
  return { time, scores: Array.from((outputs.probabilities ?? outputs.values).data, Number) };
}

// For each file the model's outputs by name, or {error, status}.
async function predict({ id, files }) {
  const found = [];
  for (const file of files) found.push(await prepareOrRefuse(file));
  const readable = found.filter((one) => one.picture);
  if (!readable.length || stopped.has(id)) return found.map(({ error, status }) => ({ error, status }));
  const outputs = await run(readable.map((one) => one.picture));
  return found.map((one) => {
    if (!one.picture) return one;
    const place = readable.indexOf(one);
    return { outputs: rowOf(outputs, place, readable.length), remarks: one.remarks };
  });
}

async function prepareOrRefuse(file) {
  try {
    return await prepare(file, spec);
  } catch (problem) {
    if (problem instanceof Refusal) return { error: problem.message, status: problem.status };
    return { error: `It cannot be read: ${problem.message}.`, status: 422 };
  }
}

// Outputs by name, of all pictures.
function run(pictures) {
  const one = pictures[0];
  const values = new one.values.constructor(pictures.length * one.values.length);
  pictures.forEach((picture, place) => values.set(picture.values, place * one.values.length));
  const shape = [pictures.length, one.height, one.width, one.channels];
  const images = new ort.Tensor(spec.dtype, values, shape);
  const made = runs.then(() => session.run({ images }));
  runs = made.catch(() => {});
  return made;
}

// The numbers of one picture; decisions come as BigInt.
function rowOf(outputs, place, count) {
  const row = {};
  for (const [name, { data }] of Object.entries(outputs)) {
    const size = data.length / count;
    row[name] = Array.from(data.slice(place * size, (place + 1) * size), Number);
  }
  return row;
}

// How far an output falls where blocks of patches are covered with the mean colour (Zeiler and Fergus 2014).
async function explain({ id, file, target }) {
  const { picture, aspect } = await prepare(file, spec);
  const answer = rowOf(await run([picture]), 0, 1);
  const index = target ?? defaultTarget(answer);
  const { side, rows, columns } = blocksOf(picture);
  const values = Array.from({ length: rows }, () => new Array(columns).fill(0));
  const places = Array.from({ length: rows * columns }, (_, place) => [Math.floor(place / columns), place % columns]);
  while (places.length) {
    const some = places.splice(0, FEW);
    const outputs = await run(some.map((place) => covered(picture, place, side)));
    if (stopped.has(id)) throw new Refusal("Stopped.", 499);
    some.forEach(([row, column], which) => {
      values[row][column] = answer.logits[index] - rowOf(outputs, which, some.length).logits[index];
    });
    await new Promise((done) => setTimeout(done)); // pictures that wait are answered in between
  }
  return { answer, index, values, rows, columns, block: side, aspect, seen: seenBy(picture) };
}

function defaultTarget({ decisions, probabilities, values }) {
  if (values) return 0;
  return decisions.length === 1 && probabilities.length > 1 ? decisions[0] : largest(probabilities);
}

const largest = (numbers) => numbers.indexOf(Math.max(...numbers));

// Patches are covered by squares of as many as leave no more than BLOCKS of them.
function blocksOf({ height, width }) {
  for (let many = 1; ; many += 1) {
    const side = spec.patch.map((pixels) => pixels * many);
    const [rows, columns] = [Math.ceil(height / side[0]), Math.ceil(width / side[1])];
    if (rows * columns <= BLOCKS) return { side, rows, columns };
  }
}

function covered(picture, [row, column], [tall, wide]) {
  const { height, width, channels } = picture;
  const values = picture.values.slice();
  for (let y = row * tall; y < Math.min(height, (row + 1) * tall); y += 1) {
    for (let x = column * wide; x < Math.min(width, (column + 1) * wide); x += 1) {
      for (let channel = 0; channel < channels; channel += 1) {
        const mean = spec.mean[spec.mean.length === 1 ? 0 : channel];
        values[(y * width + x) * channels + channel] = Math.min(spec.white, Math.max(0, rint(mean * spec.white)));
      }
    }
  }
  return { ...picture, values };
}

// Red, green, blue and opacity in 8 bits; of other channels than one or three the first is shown.
function seenBy({ values, height, width, channels }) {
  const pixels = new Uint8ClampedArray(4 * height * width);
  for (let place = 0; place < height * width; place += 1) {
    for (let part = 0; part < 3; part += 1) {
      const value = values[place * channels + (channels === 3 ? part : 0)];
      pixels[4 * place + part] = spec.white === 255 ? value : Math.floor((value + 128) / 257);
    }
    pixels[4 * place + 3] = 255;
  }
  return { pixels, height, width };
}
