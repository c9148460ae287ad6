// A map over its picture on a canvas: each patch coloured as strongly as it speaks, and read by pointer or arrow keys.

import { number } from "./words.js";

const SHORTER = 480; // pixels of the canvas's shorter side
const FOR = [255, 143, 31]; // orange and blue of maps with two sides, as in `vitrail explain`
const AGAINST = [41, 158, 255];
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

export class MapView {
  // read(sentence) gets what a patch says, or "" when none is looked at.
  constructor(canvas, palette, read) {
    this.canvas = canvas;
    this.palette = palette.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));
    this.read = read;
    this.opacity = 0.75;
    this.smooth = false;
    this.at = null; // [row, column] that is looked at
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerdown", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.look(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.look(null));
  }

  // map: what /explain answered; picture: an <img> of it that has loaded.
  show(map, picture) {
    this.map = map;
    this.picture = picture;
    this.hidden = new Set((map.artefacts ?? []).map(([row, column]) => row * map.columns + column));
    const aspect = map.aspect ?? map.width / map.height; // the picture's own, whatever the model's is
    const [height, width] = aspect < 1 ? [SHORTER / aspect, SHORTER] : [SHORTER, SHORTER * aspect];
    const patch = map.patch ?? [Math.ceil(map.height / map.rows), Math.ceil(map.width / map.columns)];
    this.side = [(patch[0] * height) / map.height, (patch[1] * width) / map.width]; // the edge may cut the last one
    this.canvas.height = Math.round(height);
    this.canvas.width = Math.round(width);
    this.at = null;
    this.draw();
    this.read("");
  }

  // What stands at the ends of the scale: 0 in the middle of two sides, 0 below where a map cannot be negative.
  get ends() {
    const { low, high, scale } = this.map;
    const most = Math.max(Math.abs(low), Math.abs(high));
    return { signed: [-most, most], cosine: [-1, 1], positive: [0, high] }[scale] ?? [low, high];
  }

  get twoSided() {
    return ["signed", "cosine"].includes(this.map.scale);
  }

  // How strongly a value speaks: 0..1, or -1..1 in maps with two sides.
  share(row, column) {
    return this.hidden.has(row * this.map.columns + column) ? 0 : this.shareOf(this.map.values[row][column]);
  }

  shareOf(value) {
    const [low, high] = this.ends;
    if (high <= low) return 0;
    const share = this.twoSided ? value / high : (value - low) / (high - low);
    return Math.max(this.twoSided ? -1 : 0, Math.min(1, share));
  }

  colour(share) {
    if (this.twoSided) return share < 0 ? AGAINST : FOR;
    return this.palette[Math.round(share * (this.palette.length - 1))];
  }

  draw() {
    if (!this.map) return;
    const pen = this.canvas.getContext("2d");
    const { width, height } = this.canvas;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.picture, 0, 0, width, height);
    pen.imageSmoothingEnabled = this.smooth;
    pen.imageSmoothingQuality = "low"; // bilinear
    const [tall, wide] = this.side;
    pen.drawImage(this.heat(), 0, 0, this.map.columns * wide, this.map.rows * tall);
    for (const place of this.hidden) this.hatch(pen, Math.floor(place / this.map.columns), place % this.map.columns);
    if (this.at) this.frame(pen, ...this.at);
  }

  // One pixel a patch, as opaque as the patch speaks.
  heat() {
    const { rows, columns } = this.map;
    const sheet = document.createElement("canvas");
    sheet.width = columns;
    sheet.height = rows;
    const pixels = new ImageData(columns, rows);
    for (let place = 0; place < rows * columns; place += 1) {
      const share = this.share(Math.floor(place / columns), place % columns);
      pixels.data.set([...this.colour(share), Math.round(255 * this.opacity * Math.abs(share))], 4 * place);
    }
    sheet.getContext("2d").putImageData(pixels, 0, 0);
    return sheet;
  }

  hatch(pen, row, column) {
    const [tall, wide] = this.side;
    const [top, left] = [row * tall, column * wide];
    pen.save();
    pen.beginPath();
    pen.rect(left, top, wide, tall);
    pen.clip();
    for (const [colour, shift] of [["#000000aa", 1.5], ["#ffffffcc", 0]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = 1.5;
      pen.beginPath();
      for (let start = -tall; start < wide; start += 9) {
        pen.moveTo(left + start + shift, top + tall);
        pen.lineTo(left + start + tall + shift, top);
      }
      pen.stroke();
    }
    pen.restore();
  }

  frame(pen, row, column) {
    const [tall, wide] = this.side;
    for (const [colour, width] of [["#000000", 6], ["#ffffff", 2.5]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.strokeRect(column * wide + 3, row * tall + 3, wide - 6, tall - 6);
    }
  }

  point(event) {
    if (!this.map) return;
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((((event.clientY - box.top) / box.height) * this.canvas.height) / this.side[0]);
    const column = Math.floor((((event.clientX - box.left) / box.width) * this.canvas.width) / this.side[1]);
    const inside = row >= 0 && column >= 0 && row < this.map.rows && column < this.map.columns;
    this.look(inside ? [row, column] : null);
  }

  key(event) {
    if (!this.map) return;
    const { rows, columns } = this.map;
    const [row, column] = this.at ?? this.strongest();
    if (event.key in STEPS) {
      const [down, right] = this.at ? STEPS[event.key] : [0, 0]; // the first key begins at the strongest patch
      this.look([Math.min(rows - 1, Math.max(0, row + down)), Math.min(columns - 1, Math.max(0, column + right))]);
    } else if (event.key === "Home" || event.key === "End") {
      this.look([row, event.key === "Home" ? 0 : columns - 1]);
    } else if (event.key === "Escape") {
      this.look(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  strongest() {
    const { rows, columns } = this.map;
    let best = [0, 0];
    for (let place = 0; place < rows * columns; place += 1) {
      const here = [Math.floor(place / columns), place % columns];
      if (Math.abs(this.share(...here)) > Math.abs(this.share(...best))) best = here;
    }
    return best;
  }

  look(at) {
    if (String(at) === String(this.at)) return;
    this.at = at;
    this.draw();
    this.read(at ? this.sentence(...at) : "");
  }

  sentence(row, column) {
    const where = `Row ${row + 1}, column ${column + 1}`;
    const hidden = this.hidden.has(row * this.map.columns + column);
    if (hidden) return `${where}: holds notes of the model instead of picture`;
    const strongest = String(this.strongest()) === String([row, column]) ? ", the strongest patch" : "";
    return `${where}: ${number(this.map.values[row][column])}${strongest}`;
  }

  // The colours from one end of the scale to the other, on a canvas of one row.
  drawScale(canvas) {
    const pen = canvas.getContext("2d");
    const pixels = new ImageData(canvas.width, 1);
    const [low, high] = this.ends;
    for (let place = 0; place < canvas.width; place += 1) {
      const share = this.shareOf(low + ((high - low) * place) / (canvas.width - 1));
      const opacity = this.twoSided ? Math.abs(share) : 1; // two sides fade into the paper between them
      pixels.data.set([...this.colour(share), Math.round(255 * opacity)], 4 * place);
    }
    pen.putImageData(pixels, 0, 0);
  }
}
