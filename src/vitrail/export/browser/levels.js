// From the values that a file stores to the levels of the model: value range, opacity and channels, as in training.

import { Refusal } from "./refusal.js";
import { rint } from "./resize.js";

const CLIPPED = 0.05; // of the values may lie beyond the range

// stored: {values, alpha or null, height, width, channels}; the same with levels, without alpha.
export function toLevels(stored, spec) {
  let values = scale(stored, spec);
  if (stored.alpha) values = onWhite(values, stored, spec.white);
  return convertChannels({ ...stored, values, alpha: null }, spec);
}

const levelsOf = (white) => (white === 255 ? Uint8Array : Uint16Array);

function scale({ values }, { low, high, white }) {
  const bytes = values instanceof Uint8Array;
  if (bytes && ((low === 0 && high === 255) || high > 255 || high <= 1)) {
    return white === 255 ? values : Uint16Array.from(values, (value) => value * 257);
  }
  if (values instanceof Uint16Array && low === 0 && high === 65535 && white === 65535) return values;
  checkRange(values, low, high);
  if (!bytes) return rescale(values, low, high, white);
  const table = rescale(Float64Array.from({ length: 256 }, (_, level) => level), low, high, white);
  return levelsOf(white).from(values, (value) => table[value]);
}

function checkRange(values, low, high) {
  let beyond = 0;
  let least = Infinity;
  let most = -Infinity;
  let finite = true;
  for (const value of values) {
    if (value < low || value > high) beyond += 1;
    if (value < least) least = value;
    if (value > most) most = value;
    if (!Number.isFinite(value)) finite = false;
  }
  if (!finite) throw new Refusal("Some of its values are no finite numbers.", 422);
  const share = beyond / values.length;
  if (share > CLIPPED) {
    const range = `Values ${low} to ${high} become black to white.`;
    throw new Refusal(
      `${range} This picture holds ${least} to ${most}, with ${Math.round(100 * share)}% of its values beyond.`,
      422,
    );
  }
  const fractions = values instanceof Float32Array || values instanceof Float64Array;
  if (fractions && high >= 255 && least >= 0 && most > 0 && most <= 1) {
    throw new Refusal(`It holds fractions 0 to 1, and the model reads ${low} to ${high}.`, 422);
  }
}

// In single precision where the product computes so: values of at most 16 bits to 8.
function rescale(values, low, high, white) {
  const single = white === 255 && values.BYTES_PER_ELEMENT <= 2 ? Math.fround : (value) => value;
  const [start, factor] = [single(low), single(white / (high - low))];
  const level = (value) => Math.min(white, Math.max(0, rint(single(single(value - start) * factor))));
  return levelsOf(white).from(values, level);
}

function onWhite(values, { alpha, channels }, white) {
  const same = alpha.constructor === values.constructor;
  const opacity = same ? alpha : rescale(alpha, 0, alpha instanceof Uint8Array ? 255 : 65535, white);
  const half = Math.floor(white / 2);
  return values.map((value, place) => {
    const weight = opacity[Math.floor(place / channels)];
    return Math.floor((value * weight + white * (white - weight) + half) / white);
  });
}

function convertChannels(picture, { channels }) {
  const { values } = picture;
  const have = picture.channels;
  if (have === channels) return picture;
  const pixels = values.length / have;
  const made = new values.constructor(pixels * channels);
  if (have === 1 && channels === 3) {
    for (let place = 0; place < made.length; place += 1) made[place] = values[Math.floor(place / 3)];
  } else if (have === 3 && channels === 1) {
    for (let place = 0; place < pixels; place += 1) {
      const [red, green, blue] = [values[3 * place], values[3 * place + 1], values[3 * place + 2]];
      made[place] = Math.floor((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536); // BT.601
    }
  } else {
    throw new Refusal(`The model reads ${channels} channels, the picture has ${have}.`, 422);
  }
  return { ...picture, values: made, channels };
}
