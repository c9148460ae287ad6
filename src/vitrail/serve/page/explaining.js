// Where the answer to the chosen picture comes from: which method, evidence for what, how strongly it is painted.

import { byId, element } from "./element.js";
import { MapView } from "./map.js";
import { explain } from "./server.js";
import { counted, inShort, number } from "./words.js";

const ANSWER = ""; // evidence for what was answered, whatever that is
const LOOKING = "Looking for the evidence …";

export class Explaining {
  // arrived(picture) when the server has drawn one that the browser could not; refused(problem) when it says no.
  constructor(about, arrived, refused) {
    this.about = about;
    this.arrived = arrived;
    this.refused = refused;
    const blind = (about.methods ?? []).filter((method) => method.of_class === false);
    this.blind = new Set(blind.map((method) => method.name)); // methods that draw the same for every class
    this.picture = null;
    this.drawnOf = null; // the picture whose map is on the canvas
    this.under = null; // the request under way: {picture, method, target, stop}
    this.view = new MapView(byId("map"), about.palette ?? [], (sentence) => (byId("reading").textContent = sentence));
    this.fill();
    for (const id of ["method", "target"]) byId(id).addEventListener("change", () => this.show(this.picture));
    for (const id of ["opacity", "smooth"]) byId(id).addEventListener("input", () => this.repaint());
  }

  fill() {
    const { methods = [], task, classes = [], columns = [] } = this.about;
    byId("method").replaceChildren(...methods.map((method) => element("option", { value: method.name }, method.title)));
    const numbers = columns.map((name) => [name, name]); // of several numbers none is the answer: one must be named
    const words = [["the answer", ANSWER], ...classes.map((name) => [name, name])];
    const options = (task === "regression" ? numbers : words).map(([name, value]) => element("option", { value }, name));
    byId("target").replaceChildren(...options);
  }

  get method() {
    return byId("method").value;
  }

  get target() {
    return this.blind.has(this.method) ? ANSWER : byId("target").value;
  }

  async show(picture) {
    this.picture = picture;
    const can = picture.state === "answered" && Boolean(this.method);
    byId("controls").hidden = !can;
    byId("target").disabled = this.blind.has(this.method);
    if (this.drawnOf !== picture || !can) this.plain(picture, can ? LOOKING : "");
    const { method, target } = this;
    const under = this.under;
    if (can && under?.picture === picture && under.method === method && under.target === target) return;
    under?.stop.abort();
    this.under = can ? { picture, method, target, stop: new AbortController() } : null;
    byId("seen").toggleAttribute("aria-busy", false);
    if (can) await this.ask(this.under);
  }

  async ask(under) {
    byId("seen").setAttribute("aria-busy", "true");
    byId("caption").textContent = LOOKING;
    const waiting = (seconds) => {
      if (this.under !== under || !seconds) return;
      byId("caption").textContent = `The server is busy: next try in ${number(seconds)} s.`;
    };
    try {
      const map = await this.mapOf(under, under.stop.signal, waiting);
      const seen = new Image();
      seen.src = map.picture;
      await seen.decode();
      if (this.under === under) this.draw(under.picture, map, seen);
    } catch (problem) {
      if (this.under === under) {
        this.plain(under.picture, problem.message);
        this.refused(problem);
      }
    }
    if (this.under !== under) return;
    this.under = null;
    byId("seen").removeAttribute("aria-busy");
  }

  // The map of a picture, asked for once.
  async mapOf({ picture, method, target }, signal, waiting) {
    const key = `${method} ${target}`;
    const map = picture.maps.get(key) ?? (await explain(picture, method, target, signal, waiting));
    picture.maps.set(key, map);
    if (picture.thumb === null) {
      picture.thumb = map.picture;
      this.arrived(picture);
    }
    return map;
  }

  // The server's picture of one that the browser cannot show.
  async look(picture) {
    if (this.method) await this.mapOf({ picture, method: this.method, target: this.target });
  }

  plain(picture, caption) {
    this.drawnOf = null;
    byId("reading").textContent = "";
    const ending = picture.name.includes(".") ? picture.name.split(".").pop().toUpperCase() : "file";
    byId("map").hidden = true;
    byId("scale").hidden = true;
    byId("plain").hidden = !picture.thumb;
    byId("nothing").hidden = Boolean(picture.thumb);
    byId("nothing").textContent = picture.thumb === undefined ? "" : ending;
    if (picture.thumb) byId("plain").src = picture.thumb;
    byId("plain").alt = picture.name;
    byId("caption").replaceChildren(caption);
  }

  draw(picture, map, seen) {
    this.drawnOf = picture;
    for (const id of ["plain", "nothing"]) byId(id).hidden = true;
    for (const id of ["map", "scale"]) byId(id).hidden = false;
    this.view.opacity = byId("opacity").value / 100;
    this.view.smooth = byId("smooth").checked;
    this.view.show(map, seen);
    this.view.drawScale(byId("colours"));
    const [low, high] = this.view.ends;
    byId("low").textContent = number(low);
    byId("high").textContent = number(high);
    byId("map").setAttribute("aria-label", this.label(picture, map));
    byId("caption").replaceChildren(...this.caption(map));
  }

  repaint() {
    this.view.opacity = byId("opacity").value / 100;
    this.view.smooth = byId("smooth").checked;
    this.view.draw();
  }

  label(picture, map) {
    const answer = inShort(picture, this.about);
    const of = map.target ? `evidence for ${map.target}` : `where the model looks, answering ${answer}`;
    const size = `${map.rows} rows of ${map.columns} patches; arrow keys read them`;
    return `${picture.name} under its explanation by ${map.method}, ${of}. ${size}.`;
  }

  caption(map) {
    const count = (map.artefacts ?? []).length;
    const hatched = count ? ` Hatched: ${counted(count, "patch", "patches")} whose value is not drawn.` : "";
    const size = `As the model sees it: ${map.height} × ${map.width} pixels in ${map.rows} × ${map.columns} patches.`;
    return [
      element("b", {}, map.target ? `Evidence for ${map.target}` : "Where the model looks"),
      element("p", {}, map.caption),
      element("p", {}, map.unit ? `The scale: ${map.unit}. ` : "", size, hatched),
    ];
  }
}
