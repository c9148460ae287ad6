// NumPy's files: arrays of rows, columns and perhaps channels, as they are.

import { Refusal, checkSize, damaged, truncated } from "./refusal.js";

const KINDS = {
  u1: [Uint8Array, "getUint8", 1],
  i1: [Int8Array, "getInt8", 1],
  u2: [Uint16Array, "getUint16", 2],
  i2: [Int16Array, "getInt16", 2],
  u4: [Uint32Array, "getUint32", 4],
  i4: [Int32Array, "getInt32", 4],
  f4: [Float32Array, "getFloat32", 4],
  f8: [Float64Array, "getFloat64", 8],
};

export function parseNpy(bytes, maxPixels) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  if (bytes.length < 12) throw truncated("NPY", bytes.length);
  const [begin, length] = bytes[6] === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
  const header = new TextDecoder("latin1").decode(bytes.subarray(begin, begin + length));
  const said = /'descr':\s*'([<>|=]?)(\w+)'/.exec(header);
  const sides = /'shape':\s*\(([^)]*)\)/.exec(header);
  if (!said || !sides) throw damaged("NPY", "its header describes no array of numbers");
  const shape = sides[1].split(",").filter((side) => side.trim()).map(Number);
  const words = `Got shape (${shape.join(", ")}).`;
  if (![2, 3].includes(shape.length)) {
    throw new Refusal(`A picture must be an array [height, width] or [height, width, channels]. ${words}`, 422);
  }
  const kind = KINDS[said[2]];
  if (!kind) throw new Refusal(`It holds numbers of type ${said[2]}, which this page does not read.`, 422);
  const [height, width, channels = 1] = shape;
  checkSize(height, width * Math.min(1, channels), maxPixels);
  const [Type, read, size] = kind;
  const count = height * width * channels;
  const start = begin + length;
  if (start + count * size > bytes.length) throw truncated("NPY", bytes.length);
  const columnsFirst = /'fortran_order':\s*True/.test(header);
  const values = new Type(count);
  for (let place = 0; place < count; place += 1) {
    const channel = place % channels;
    const pixel = (place - channel) / channels;
    const [row, column] = [Math.floor(pixel / width), pixel % width];
    const at = columnsFirst ? row + height * (column + width * channel) : place;
    values[place] = view[read](start + at * size, said[1] !== ">");
  }
  return { values, alpha: null, height, width, channels, remarks: [] };
}
