// What the page says of the model itself, from what the server says of it.

import { element } from "./element.js";
import { counted, fixed, megabytes } from "./words.js";

const MANY = 60;
const FEW = 8; // names that a heading can hold

export function jobOf({ task, classes, columns }) {
  const several = columns.length === 1 ? "a number" : `${columns.length} numbers`;
  if (task === "regression") return `Reads ${several} off a picture: ${columns.join(", ")}.`;
  if (task === "anomaly") return "Says whether a picture differs from good ones.";
  const names = classes.length > FEW ? "" : `: ${classes.join(", ")}`;
  if (task === "segmentation") return `Says which of ${classes.length} classes every pixel shows${names}.`;
  if (task === "multilabel") return `Says which of ${classes.length} labels fit a picture${names}.`;
  return `Says which of ${classes.length} classes a picture shows${names}.`;
}

export function limitsOf({ limits, local }, host) {
  if (local) return "JPEG, PNG, WebP, BMP, GIF and NPY. They stay in this browser: nothing is sent anywhere.";
  const size = limits?.bytes ? `, up to ${megabytes(limits.bytes)} each` : "";
  return `JPEG, PNG, TIFF, DICOM and others${size}. They are sent to ${host} and nowhere else.`;
}

// Pairs of a term and what is said of it: text or elements.
export function factsOf(about) {
  const { image } = about;
  const colours = { 1: "grey", 3: "colour" }[image.channels] ?? `${image.channels} channels`;
  const facts = [
    [about.task === "regression" ? "Numbers" : about.task === "multilabel" ? "Labels" : "Classes", namesOf(about)],
    ["Reads pictures at", `${image.height} × ${image.width} pixels, ${colours}`],
  ];
  if (!["anomaly", "regression", "segmentation"].includes(about.task)) facts.push(["Probabilities", calibrationOf(about)]);
  if (!["anomaly", "segmentation"].includes(about.task)) facts.push(["Leaves unanswered", silenceOf(about)]);
  if (about.methods?.length) facts.push(["Explanations", element("ul", {}, ...about.methods.map(methodLine))]);
  if (about.engine) facts.push(["Computed", about.engine]);
  const licence = about.licence ? [["Licence", about.licence]] : [];
  const documents = element("a", { href: "docs" }, "what programs can ask this server");
  const more = about.local ? `${about.local} in this browser` : documents;
  return [...facts, ...licence, ["Vitrail", `${about.version}: `, more]];
}

function namesOf({ task, classes, columns, thresholds }) {
  const names = task === "regression" ? columns : classes;
  const from = (name) => (thresholds?.[name] === undefined ? name : `${name} (from ${fixed(thresholds[name])})`);
  const told = names.slice(0, MANY).map(from);
  return told.join(", ") + (names.length > MANY ? ` and ${counted(names.length - MANY, "other", "others")}` : "");
}

function calibrationOf({ calibrated }) {
  if (!calibrated) return "not calibrated: scores, whose order means something and whose size does not";
  return "calibrated on pictures held out from training: of those answered with 0.93, about 93 in 100 are right";
}

function silenceOf({ abstains_below: below, unlike }) {
  const reasons = [];
  if (below !== null && below !== undefined) reasons.push(`pictures whose best class stays below ${fixed(below)}`);
  if (unlike) reasons.push("pictures unlike those of its training");
  const blind = unlike ? "" : "; whether a picture is like those of its training is not known";
  return `${reasons.join(", and ") || "nothing"}${blind}`;
}

const methodLine = (method) => element("li", {}, element("b", {}, method.title), `: ${method.line}`);
