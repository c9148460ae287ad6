// The page: what the server says of its model, pictures taken in, each answered, explained and listed.

import { answerOf } from "./answer.js";
import { CSV, csvOf, download } from "./csv.js";
import { Deciding } from "./deciding.js";
import { byId, element, say } from "./element.js";
import { Explaining } from "./explaining.js";
import { factsOf, jobOf, limitsOf } from "./model.js";
import { Queue } from "./queue.js";
import { about as askAbout, hasToken, hearDecision, useToken } from "./server.js";
import { Table } from "./table.js";
import { forget, thumbnail } from "./thumbnails.js";
import { counted, inShort, needsPerson, number } from "./words.js";
import * as camera from "./camera.js";
import * as intake from "./intake.js";

start();

async function start() {
  try {
    present(await askAbout());
  } catch (problem) {
    byId("job").textContent = "";
    trouble(problem.message);
  }
}

function trouble(sentence) {
  byId("trouble").textContent = sentence;
  byId("trouble").hidden = !sentence;
}

function present(about) {
  let chosen = null;
  let announced = 0; // pictures that were done when a screen reader was told last
  let drawing = false; // whether the server is drawing a picture for us
  const table = new Table(about, (picture) => choose(picture, true));
  const queue = new Queue(about.limits, changed, moved);
  const explaining = new Explaining(about, (picture) => table.update(picture), refused);

  introduce(about);
  const deciding = new Deciding(about, decided, refused);
  hearDecision(heard);
  intake.listen(take);
  camera.listen(take);
  if (about.token && !hasToken()) askForToken();
  byId("ask-token").addEventListener("submit", tokenGiven);
  byId("stop").addEventListener("click", () => queue.stop());
  byId("go-on").addEventListener("click", () => queue.goOn());
  byId("clear").addEventListener("click", clear);
  byId("save").addEventListener("click", () => download("predictions.csv", new Blob([csvOf(answeredRows())], CSV)));
  byId("about").addEventListener("keydown", (event) => {
    if (event.key === "Escape") byId("about").open = false;
  });

  function take(found) {
    if (!found.length) return;
    trouble("");
    const pictures = found.map((one) => ({ ...one, state: "waiting", thumb: undefined, maps: new Map() }));
    document.body.classList.add("started");
    table.add(pictures);
    queue.add(pictures);
    choose(pictures[0], false);
    pictures.forEach(makeThumbnail);
  }

  async function makeThumbnail(picture) {
    picture.thumb = await thumbnail(picture.file);
    if (!queue.pictures.includes(picture)) return forget(picture);
    table.update(picture);
    if (picture === chosen && !explaining.drawnOf) explaining.show(picture);
    return fetchUnseen();
  }

  function choose(picture, asked) {
    chosen = picture;
    table.mark(picture);
    byId("detail").hidden = false;
    showChosen();
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (asked) byId("detail").scrollIntoView({ block: "nearest", behavior: calm ? "auto" : "smooth" });
    if (asked && picture.row) say(`${picture.name}: ${inShort(picture, about)}`);
  }

  function showChosen() {
    byId("detail-name").textContent = chosen.name;
    byId("answer").replaceChildren(...answerOf(chosen, about, (picture) => queue.again(picture)));
    explaining.show(chosen);
  }

  function changed(picture) {
    table.update(picture);
    if (picture === chosen) showChosen();
  }

  // Progress, what stands still and why, and the buttons that make sense now.
  function moved() {
    const total = queue.pictures.length;
    const waits = queue.waiting.length;
    byId("going").hidden = !queue.running && !waits;
    byId("progress").max = Math.max(1, total);
    byId("progress").value = queue.done;
    byId("progress-says").textContent = progressWords(queue, total, waits);
    byId("stop").hidden = !queue.running;
    byId("go-on").hidden = queue.running || !waits;
    byId("batch").hidden = total < 2;
    const people = queue.pictures.filter(needsPerson).length;
    byId("only-count").textContent = `(${people})`;
    const failed = queue.pictures.filter((picture) => picture.state === "failed").length;
    byId("save").disabled = !answeredRows().length;
    const told = `${counted(failed, "picture", "pictures")} without an answer will not be in the file.`;
    byId("left-out").textContent = failed ? told : "";
    if (queue.halted?.status === 401) askForToken(queue.halted.sentence);
    if (!queue.running) finished(total, people);
  }

  function finished(total, people) {
    if (total && queue.done === total && announced !== total) {
      const only = queue.pictures[0];
      const all = `${total} of ${total} done. ${people === 1 ? "1 needs" : `${people} need`} a person.`;
      say(total === 1 ? `${only.name}: ${inShort(only, about)}` : all);
    }
    announced = queue.done;
    fetchUnseen();
  }

  // What the browser cannot show, the server draws: one after the other, once nothing else is asked.
  async function fetchUnseen() {
    const blank = (picture) => picture.thumb === null && picture.state === "answered" && !picture.unseen;
    const unseen = queue.pictures.find(blank);
    if (!unseen || queue.running || drawing) return;
    drawing = true;
    unseen.unseen = true;
    await explaining.look(unseen).catch(() => {}); // the same no is told beside the picture when it is chosen
    drawing = false;
    fetchUnseen();
  }

  // Another decision answers: its thresholds are shown, and every picture is asked about again.
  function decided(version) {
    const names = version.positive ? [version.positive] : about.classes;
    about.thresholds = Object.fromEntries(version.thresholds.map((threshold, place) => [names[place], threshold]));
    about.abstains_below = version.sure || null;
    introduce(about);
    for (const picture of queue.pictures) picture.maps.clear();
    queue.pictures.filter((picture) => picture.state === "answered").forEach((picture) => queue.again(picture));
  }

  // The server's own decision has changed since it was asked about.
  async function heard(name) {
    if (!name || name === about.decision || byId("decision").value) return;
    Object.assign(about, await askAbout());
    introduce(about);
    deciding.renew();
    if (chosen) showChosen();
  }

  function refused(problem) {
    if (problem.status === 401) askForToken(problem.message);
  }

  function tokenGiven(event) {
    event.preventDefault();
    useToken(byId("token").value.trim());
    byId("token").value = "";
    byId("ask-token").hidden = true;
    queue.goOn();
    if (chosen) explaining.show(chosen);
    byId("choose").focus();
  }

  function clear() {
    const gone = queue.pictures;
    queue.clear();
    table.clear();
    gone.forEach(forget);
    chosen = null;
    byId("detail").hidden = true;
    document.body.classList.remove("started");
    byId("choose").focus();
    say("All pictures are removed.");
  }

  function answeredRows() {
    return queue.pictures.filter((picture) => picture.state === "answered").map((picture) => picture.row);
  }
}

function progressWords(queue, total, waits) {
  if (queue.wait) return `The server is busy: next try in ${number(queue.wait)} s.`;
  if (queue.halted?.sentence) return queue.halted.sentence;
  if (queue.halted) return `Stopped. ${counted(waits, "picture was", "pictures were")} not asked about.`;
  return `${queue.done} of ${total} done`;
}

function askForToken(sentence = "") {
  const again = sentence && hasToken() && byId("ask-token").hidden;
  byId("ask-token").hidden = false;
  if (sentence) byId("token-says").textContent = sentence;
  if (again) byId("token").focus();
}

function introduce(about) {
  document.title = `${about.name} · Vitrail`;
  byId("name").textContent = about.name;
  byId("job").textContent = jobOf(about);
  byId("limits").textContent = limitsOf(about, location.host);
  const facts = factsOf(about).map(([term, ...told]) => [element("dt", {}, term), element("dd", {}, ...told)]);
  byId("facts").replaceChildren(...facts.flat());
}
