// Corrections of a mask: a brush of one class, and the mask as a file to train with.

import { CSV, download } from "./csv.js";
import { element, say } from "./element.js";

const UNKNOWN = 255; // in a file: neither learnt nor counted
const SIZES = { min: 1, max: 60, value: 12 }; // diameter of the brush in pixels of the canvas
const STEPS = 20; // strokes that can be taken back

// The controls below a mask. `classes` is changed in place, column by column; paint() shows it.
export function correction(canvas, classes, [height, width], about, picture, paint) {
  const names = [...about.classes, "unknown"];
  const options = names.map((name, place) => element("option", { value: place < about.classes.length ? place : UNKNOWN }, name));
  const label = element("select", { id: "brush-class" }, ...options);
  const size = element("input", { type: "range", id: "brush-size", ...SIZES });
  const before = []; // the classes before each stroke
  const undo = element("button", { type: "button", class: "quiet", disabled: true }, "Undo");
  undo.addEventListener("click", () => {
    classes.set(before.pop());
    undo.disabled = !before.length;
    paint();
  });
  const save = element("button", { type: "button", id: "save-mask", click: () => saveMask(classes, [height, width], picture) }, "Save mask");
  const legend = element("button", { type: "button", class: "quiet", id: "save-legend", click: () => saveLegend(about) }, "Save classes.csv");
  const row = (name, control, words) => element("div", { class: "controls" }, element("label", { for: name }, words), control);
  const note = "Draw on the picture. Saved masks hold class numbers: put them into masks/, beside the picture in images/ and classes.csv, and train again.";
  const panel = element(
    "details",
    { class: "correct" },
    element("summary", {}, "Correct this mask"),
    element("p", { class: "soft small" }, note),
    row("brush-class", label, "Class"),
    row("brush-size", size, "Brush"),
    element("div", { class: "actions" }, undo, save, legend),
  );
  panel.addEventListener("toggle", () => canvas.classList.toggle("drawn", panel.open));

  let last = null; // where the stroke is, in pixels of the picture
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
  };
  const stroke = (event) => {
    const here = at(event);
    const box = canvas.getBoundingClientRect();
    const reach = [width / box.width, height / box.height].map((scale) => Math.max(0.5, (size.value / 2) * scale));
    fill(classes, [height, width], last ?? here, here, reach, Number(label.value));
    last = here;
    paint();
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (!panel.open || event.button) return;
    event.preventDefault();
    canvas.setPointerCapture(event.pointerId);
    before.push(classes.slice());
    if (before.length > STEPS) before.shift();
    undo.disabled = false;
    stroke(event);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (last) stroke(event);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => (last = null));
  return panel;
}

// All pixels that are as near to the line between two points as an ellipse reaches.
function fill(classes, [height, width], [x0, y0], [x1, y1], [across, down], value) {
  const [dx, dy] = [(x1 - x0) / across, (y1 - y0) / down];
  const length = dx * dx + dy * dy;
  const [left, right] = [Math.min(x0, x1) - across, Math.max(x0, x1) + across];
  const [top, bottom] = [Math.min(y0, y1) - down, Math.max(y0, y1) + down];
  for (let x = Math.max(0, Math.floor(left)); x < Math.min(width, right); x += 1) {
    for (let y = Math.max(0, Math.floor(top)); y < Math.min(height, bottom); y += 1) {
      const [px, py] = [(x + 0.5 - x0) / across, (y + 0.5 - y0) / down];
      const share = length ? Math.min(1, Math.max(0, (px * dx + py * dy) / length)) : 0;
      if ((px - share * dx) ** 2 + (py - share * dy) ** 2 <= 1) classes[x * height + y] = value;
    }
  }
}

// A grey PNG whose levels are class numbers: opaque, so that no level is rounded.
function saveMask(classes, [height, width], picture) {
  const pixels = new ImageData(width, height);
  for (let x = 0; x < width; x += 1) {
    for (let y = 0; y < height; y += 1) {
      const level = classes[x * height + y];
      pixels.data.set([level, level, level, 255], 4 * (y * width + x));
    }
  }
  const sheet = document.createElement("canvas");
  [sheet.width, sheet.height] = [width, height];
  sheet.getContext("2d").putImageData(pixels, 0, 0);
  sheet.toBlob((blob) => download(`${picture.name.replace(/\.[^.]*$/, "")}.png`, blob), "image/png");
  say(`The mask of ${picture.name} is saved.`);
}

function saveLegend(about) {
  const quoted = (name) => (/[",\r\n]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);
  const lines = ["value,name", ...about.classes.map((name, place) => `${place},${quoted(name)}`), `${UNKNOWN},unknown`];
  download("classes.csv", new Blob([`${lines.join("\n")}\n`], CSV));
}
