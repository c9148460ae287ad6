// PNG files of every depth, pixel by pixel: a browser's own decoder would apply colour profiles and drop 16 bits.

import { orientationOf, orientationOfXmp, turn } from "./orientation.js";
import { Refusal, checkSize, damaged, truncated } from "./refusal.js";

const PNG = "PNG";
const GREY = 0;
const RGB = 2;
const PALETTE = 3;
const SAMPLES = { 0: 1, 2: 3, 3: 1, 4: 2, 6: 4 };
const DEPTHS = { 0: [1, 2, 4, 8, 16], 2: [8, 16], 3: [1, 2, 4, 8], 4: [8, 16], 6: [8, 16] };
const PIXELS = ["IHDR", "PLTE", "tRNS", "IDAT"];
const ADAM7 = [
  [0, 0, 8, 8],
  [4, 0, 8, 8],
  [0, 4, 4, 8],
  [2, 0, 4, 4],
  [0, 2, 2, 4],
  [1, 0, 2, 2],
  [0, 1, 1, 2],
]; // first column, first row, and the steps between columns and between rows
const TEXT = 4 * 2 ** 20; // bytes at most that a text unpacks to

export async function parsePng(bytes, maxPixels) {
  if (bytes.length < 33) throw truncated(PNG, bytes.length);
  const name = latin(bytes.subarray(12, 16));
  if (name === "CgBI") throw new Refusal("is a PNG as Xcode writes it into iOS apps (CgBI); convert it first.", 422);
  if (name !== "IHDR") throw damaged(PNG, "it does not begin with its header");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const [width, height, depth, colour, interlaced] = [view.getUint32(16), view.getUint32(20), bytes[24], bytes[25], bytes[28]];
  checkSize(height, width, maxPixels);
  if (!DEPTHS[colour]?.includes(depth)) throw damaged(PNG, `no picture has ${depth} bits of colour type ${colour}`);
  const chunks = collect(bytes, view);
  if (!chunks.IDAT.length) throw truncated(PNG, bytes.length);
  if (colour === PALETTE && !chunks.PLTE.length) throw damaged(PNG, "its palette is missing");
  const shape = { width, height, depth, samples: SAMPLES[colour] };
  const passes = interlaced ? ADAM7 : [[0, 0, 1, 1]];
  const rows = await inflate(chunks.IDAT, packedSize(shape, passes));
  if (!rows) throw truncated(PNG, bytes.length);
  const stored = withColours(unpack(rows, shape, passes), shape, colour, chunks);
  const orientation = await findOrientation(chunks);
  return turn({ ...stored, remarks: chunks.remarks }, orientation);
}

const latin = (bytes) => new TextDecoder("latin1").decode(bytes);

// Chunks by name; a wrong checksum of pixels is an error, that of another chunk a remark.
function collect(bytes, view) {
  const kept = { PLTE: [], tRNS: [], IDAT: [], eXIf: [], texts: [], remarks: [] };
  let place = 8;
  for (;;) {
    if (place + 8 > bytes.length) break;
    const length = view.getUint32(place);
    const name = latin(bytes.subarray(place + 4, place + 8));
    if (!/^[A-Za-z]{4}$/.test(name)) throw damaged(PNG, `no chunk is called ${name}`);
    const end = place + 12 + length;
    if (end > bytes.length) {
      if (PIXELS.includes(name)) throw truncated(PNG, bytes.length);
      break;
    }
    if (name === "IEND") return kept;
    const content = bytes.subarray(place + 8, end - 4);
    if (crc(bytes.subarray(place + 4, end - 4)) !== view.getUint32(end - 4)) {
      if (/^[A-Z]/.test(name)) throw damaged(PNG, `the checksum of its chunk ${name} is wrong`);
      kept.remarks.push("damage beside the pixels");
    }
    if (["zTXt", "iTXt", "tEXt"].includes(name)) kept.texts.push([name, content]);
    else if (name === "acTL" && content[3] !== 1) kept.remarks.push("first of several frames");
    else if (name in kept) kept[name].push(content);
    place = end;
  }
  kept.remarks.push("end marker missing");
  return kept;
}

const CRC = Int32Array.from({ length: 256 }, (_, start) => {
  let value = start;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

function crc(bytes) {
  let value = -1;
  for (const byte of bytes) value = CRC[(value ^ byte) & 255] ^ (value >>> 8);
  return ~value >>> 0;
}

const sidesOf = ({ width, height }, [left, top, across, down]) => [
  Math.max(0, Math.ceil((height - top) / down)),
  Math.max(0, Math.ceil((width - left) / across)),
];

const rowBytes = (columns, { depth, samples }) => Math.ceil((columns * depth * samples) / 8);

function packedSize(shape, passes) {
  const sizes = passes.map((pass) => {
    const [rows, columns] = sidesOf(shape, pass);
    return columns ? rows * (1 + rowBytes(columns, shape)) : 0;
  });
  return sizes.reduce((sum, size) => sum + size, 0);
}

// The first `size` bytes of a zlib stream; null where it ends before. What comes after is not looked at.
async function inflate(parts, size) {
  const made = new Uint8Array(size);
  let filled = 0;
  const reader = new Blob(parts).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  try {
    while (filled < size) {
      const { done, value } = await reader.read();
      if (done) return null;
      const part = value.subarray(0, size - filled);
      made.set(part, filled);
      filled += part.length;
    }
  } catch {
    return null;
  }
  reader.cancel().catch(() => {});
  return made;
}

// Samples of every pixel: 8 bits, 16 bits, or numbers of fewer bits as they are.
function unpack(rows, shape, passes) {
  const { width, height, depth, samples } = shape;
  const values = new (depth === 16 ? Uint16Array : Uint8Array)(height * width * samples);
  const step = Math.max(1, (depth * samples) >> 3); // bytes from a pixel to the one on its left
  let place = 0;
  for (const pass of passes) {
    const [left, top, across, down] = pass;
    const [lines, columns] = sidesOf(shape, pass);
    const bytes = rowBytes(columns, shape);
    let above = new Uint8Array(bytes);
    for (let line = 0; columns && line < lines; line += 1) {
      const row = rows.subarray(place + 1, place + 1 + bytes);
      unfilter(rows[place], row, above, step);
      const out = (top + line * down) * width;
      for (let at = 0; at < columns * samples; at += 1) {
        const sample = at % samples;
        const column = left + ((at - sample) / samples) * across;
        values[(out + column) * samples + sample] = read(row, at, depth);
      }
      above = row;
      place += 1 + bytes;
    }
  }
  return values;
}

function read(row, at, depth) {
  if (depth === 8) return row[at];
  if (depth === 16) return (row[2 * at] << 8) | row[2 * at + 1];
  const bit = at * depth;
  return (row[bit >> 3] >> (8 - depth - (bit & 7))) & ((1 << depth) - 1);
}

// In place; `above` is the row before, unfiltered.
function unfilter(kind, row, above, step) {
  const undo = UNDO[kind];
  if (!undo) throw damaged(PNG, `no row is filtered by ${kind}`);
  undo(row, above, step);
}

const UNDO = [
  () => {},
  (row, above, step) => {
    for (let at = step; at < row.length; at += 1) row[at] += row[at - step];
  },
  (row, above) => {
    for (let at = 0; at < row.length; at += 1) row[at] += above[at];
  },
  (row, above, step) => {
    for (let at = 0; at < row.length; at += 1) row[at] += ((at < step ? 0 : row[at - step]) + above[at]) >> 1;
  },
  (row, above, step) => {
    for (let at = 0; at < step; at += 1) row[at] += above[at];
    for (let at = step; at < row.length; at += 1) row[at] += paeth(row[at - step], above[at], above[at - step]);
  },
];

function paeth(before, above, corner) {
  const guess = before + above - corner;
  const [left, up, across] = [Math.abs(guess - before), Math.abs(guess - above), Math.abs(guess - corner)];
  if (left <= up && left <= across) return before;
  return up <= across ? above : corner;
}

// Grey or colours, and their opacity where the file has any.
function withColours(values, { width, height, depth, samples }, colour, { PLTE, tRNS }) {
  const shape = { width, height, alpha: null };
  const most = 2 ** depth - 1;
  const key = tRNS[0];
  if (colour === PALETTE) return fromPalette(values, shape, PLTE[0], key);
  if (samples === 2 || samples === 4) {
    const channels = samples - 1;
    const colours = values.filter((_, place) => place % samples !== channels);
    return { ...shape, channels, values: colours, alpha: values.filter((_, place) => place % samples === channels) };
  }
  const stretched = depth < 8 ? values.map((value) => value * (255 / most)) : values;
  const made = { ...shape, channels: samples, values: stretched };
  if (!key || key.length < 2 * samples || ![GREY, RGB].includes(colour)) return made;
  const wanted = Array.from({ length: samples }, (_, sample) => (key[2 * sample] << 8) | key[2 * sample + 1]);
  const alpha = new values.constructor(width * height);
  for (let pixel = 0; pixel < alpha.length; pixel += 1) {
    const clear = wanted.every((value, sample) => values[pixel * samples + sample] === value);
    alpha[pixel] = clear ? 0 : depth === 16 ? 65535 : 255;
  }
  return { ...made, alpha };
}

function fromPalette(values, shape, palette, opacity) {
  const colours = new Uint8Array(3 * values.length);
  values.forEach((value, pixel) => {
    for (let channel = 0; channel < 3; channel += 1) colours[3 * pixel + channel] = palette[3 * value + channel] ?? 0;
  });
  const alpha = opacity ? values.map((value) => opacity[value] ?? 255) : null;
  return { ...shape, channels: 3, values: colours, alpha };
}

// From an eXIf chunk, else from a text in which ImageMagick and exiftool keep one, else from an XMP packet.
async function findOrientation({ eXIf, texts }) {
  const said = eXIf.map(orientationOf);
  const packets = [];
  for (const [kind, content] of texts) {
    const { name, text } = await textOf(kind, content);
    if (name === "XML:com.adobe.xmp") packets.push(text);
    else if (name.startsWith("Raw profile type")) {
      const digits = latin(text).split(/\s+/).filter(Boolean).slice(2).join("");
      const block = Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
      if (name.endsWith("xmp") || latin(block).startsWith("http://ns.adobe.com/xap/1.0/")) packets.push(block);
      else said.push(orientationOf(block));
    }
  }
  return [...said, ...packets.map(orientationOfXmp)].find((one) => one) ?? 1;
}

async function textOf(kind, content) {
  const end = content.indexOf(0);
  const name = latin(content.subarray(0, end));
  let packed = content.subarray(end + 2);
  if (kind === "tEXt") return { name, text: content.subarray(end + 1) };
  if (kind === "iTXt") {
    packed = content.subarray(end + 3);
    for (let field = 0; field < 2; field += 1) packed = packed.subarray(packed.indexOf(0) + 1); // language, translation
    if (content[end + 1] !== 1) return { name, text: packed };
  }
  return { name, text: await unpackText(packed) };
}

async function unpackText(packed) {
  const parts = [];
  let size = 0;
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate")).getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      parts.push(next.value);
      size += next.value.length;
      if (size > TEXT) throw new Refusal("image carries texts or profiles of more than 4 MiB; save it without them.", 413);
    }
  } catch (problem) {
    if (problem instanceof Refusal) throw problem;
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
