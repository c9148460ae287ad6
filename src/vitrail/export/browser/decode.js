// From a file to what the model reads. PNG and NPY are decoded here, JPEG, WebP, GIF and BMP by the browser.

import { readJpeg } from "./jpeg.js";
import { toLevels } from "./levels.js";
import { parseNpy } from "./npy.js";
import { turn } from "./orientation.js";
import { parsePng } from "./png.js";
import { Refusal, checkSize, damaged } from "./refusal.js";
import { fit, visibleSize } from "./resize.js";

const KINDS = [
  ["DICOM", (start) => text(start, 128, 132) === "DICM"],
  ["JPEG", (start) => text(start, 0, 3) === "\xff\xd8\xff"],
  ["PNG", (start) => text(start, 0, 8) === "\x89PNG\r\n\x1a\n"],
  ["WebP", (start) => text(start, 0, 4) === "RIFF" && text(start, 8, 12) === "WEBP"],
  ["BMP", (start) => text(start, 0, 2) === "BM"],
  ["GIF", (start) => ["GIF87a", "GIF89a"].includes(text(start, 0, 6))],
  ["TIFF", (start) => ["II*\0", "MM\0*", "II+\0", "MM\0+"].includes(text(start, 0, 4))],
  ["NPY", (start) => text(start, 0, 6) === "\x93NUMPY"],
];

const text = (bytes, from, to) => String.fromCharCode(...bytes.subarray(from, to));

// The picture {values, height, width, channels} of the model's size, remarks about its file, and its aspect.
export async function prepare(file, spec) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const stored = await parse(bytes, spec.max_pixels);
  const levels = toLevels(stored, spec);
  const [rows, columns] = visibleSize(levels, spec);
  return { picture: fit(levels, spec), remarks: stored.remarks, aspect: columns / rows };
}

async function parse(bytes, maxPixels) {
  const kind = KINDS.find(([, begins]) => begins(bytes.subarray(0, 132)))?.[0];
  if (kind === "PNG") return parsePng(bytes, maxPixels);
  if (kind === "NPY") return parseNpy(bytes, maxPixels);
  if (["DICOM", "TIFF"].includes(kind)) {
    throw new Refusal(`This page does not read ${kind} files; \`vitrail predict\` does. Save it as PNG.`, 415);
  }
  if (!kind) throw new Refusal("not a picture this page reads; expected JPEG, PNG, WebP, BMP, GIF or NPY files.", 415);
  if (kind !== "JPEG") return byBrowser([bytes], kind, maxPixels);
  const { parts, orientation } = readJpeg(bytes);
  return turn(await byBrowser(parts, kind, maxPixels), orientation);
}

// Without colour management; of an animation the first frame.
async function byBrowser(parts, kind, maxPixels) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(new Blob(parts), { colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    throw damaged(kind, "this browser cannot decode it");
  }
  const { height, width } = bitmap;
  checkSize(height, width, maxPixels);
  const pen = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  const pixels = pen.getImageData(0, 0, width, height).data;
  const values = new Uint8Array(3 * height * width);
  const alpha = new Uint8Array(height * width);
  for (let place = 0; place < alpha.length; place += 1) {
    for (let channel = 0; channel < 3; channel += 1) values[3 * place + channel] = pixels[4 * place + channel];
    alpha[place] = pixels[4 * place + 3];
  }
  return { values, alpha: alpha.every((one) => one === 255) ? null : alpha, height, width, channels: 3, remarks: [] };
}
