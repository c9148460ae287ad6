// The class of every pixel over its picture: how strongly, and which classes, is for the reader to say.

import { correction } from "./correct.js";
import { element } from "./element.js";
import { number } from "./words.js";

const LONGEST = 640; // pixels of the canvas's longer side
const UNSEEN = 255; // of pixels that the model does not read
const hidden = new Set([0]); // classes that are not coloured, whatever the picture; the first is the background
let opacity = 0.5;

// COCO's letters: groups of five bits from the lowest, from the fourth run on less the one before the last.
export function runsOf(text) {
  const runs = [];
  let [value, shift] = [0, 0];
  for (const letter of text) {
    const group = letter.charCodeAt(0) - 48;
    value += (group & 31) * 2 ** shift;
    shift += 5;
    if (group & 32) continue;
    if (group & 16) value -= 2 ** shift;
    runs.push(value + (runs.length > 2 ? runs.at(-2) : 0));
    [value, shift] = [0, 0];
  }
  return runs;
}

// The class of every pixel, column by column.
export function classesOf({ size: [height, width], counts }, names) {
  const classes = new Uint8Array(height * width).fill(UNSEEN);
  names.forEach((name, place) => {
    let at = 0;
    runsOf(counts[name] ?? "").forEach((run, turn) => {
      if (turn % 2) classes.fill(place, at, at + run);
      at += run;
    });
  });
  return classes;
}

// A canvas with the mask, a slider, and a switch for every class with its share of the pixels.
export function maskView(picture, about) {
  const { size } = picture.mask;
  const canvas = element("canvas", { class: "mask", role: "img", "aria-label": `Mask of ${picture.name}` });
  const scale = Math.min(1, LONGEST / Math.max(...size));
  [canvas.height, canvas.width] = size.map((side) => Math.max(1, Math.round(side * scale)));
  picture.classes ??= classesOf(picture.mask, about.classes); // with the corrections of this visit
  const { classes } = picture;
  const colours = about.colors.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
  const shown = new Image();
  const paint = () => draw(canvas, shown, classes, size, colours);
  shown.addEventListener("load", paint);
  if (picture.thumb) shown.src = picture.thumb;
  paint();
  const slider = element("input", { type: "range", min: 0, max: 100, step: 5, value: 100 * opacity, id: "mask-opacity" });
  slider.addEventListener("input", () => {
    opacity = slider.value / 100;
    paint();
  });
  const switches = about.classes.map((name, place) => switchOf(name, place, picture.row, about.colors[place], paint));
  const controls = element("div", { class: "controls" }, element("label", { for: "mask-opacity" }, "Strength"), slider);
  const list = element("ul", { class: "switches" }, ...switches);
  return [canvas, controls, list, correction(canvas, classes, size, about, picture, paint)];
}

function switchOf(name, place, row, colour, paint) {
  const box = element("input", { type: "checkbox", checked: !hidden.has(place) });
  box.addEventListener("change", () => {
    if (box.checked) hidden.delete(place);
    else hidden.add(place);
    paint();
  });
  const swatch = element("i", { "aria-hidden": "true" });
  swatch.style.background = colour;
  const area = row[`area_${name}`];
  const share = `${number(100 * row[`value_${name}`])} %${area === undefined ? "" : `, ${number(area)}`}`;
  return element("li", {}, element("label", { class: "tick" }, box, swatch, ` ${name} `, element("small", {}, share)));
}

function draw(canvas, shown, classes, [height, width], colours) {
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  if (shown.naturalWidth) pen.drawImage(shown, 0, 0, canvas.width, canvas.height);
  const pixels = new ImageData(canvas.width, canvas.height);
  for (let y = 0; y < canvas.height; y += 1) {
    const row = Math.floor(((y + 0.5) * height) / canvas.height);
    for (let x = 0; x < canvas.width; x += 1) {
      const place = classes[Math.floor(((x + 0.5) * width) / canvas.width) * height + row];
      if (place === UNSEEN || hidden.has(place)) continue;
      pixels.data.set([...colours[place], Math.round(255 * opacity)], 4 * (y * canvas.width + x));
    }
  }
  const sheet = document.createElement("canvas");
  [sheet.width, sheet.height] = [canvas.width, canvas.height];
  sheet.getContext("2d").putImageData(pixels, 0, 0);
  pen.drawImage(sheet, 0, 0);
}
