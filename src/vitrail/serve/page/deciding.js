// Which decision answers, and what it costs: misses and false alarms follow a slider over the threshold, counted here.

import { byId, element } from "./element.js";
import { decisions as askDecisions, useDecision } from "./server.js";
import { counted, fixed } from "./words.js";

const Z = 1.959963984540054; // of 95 %
const RARE = [undefined, 0.05129329438755053, 0.35536151069866195, 0.8176914471639534]; // gammaincinv(k, 0.05)
const NAME = "NAME";
const MOVED_CLASSES = "What it costs at a stated prevalence of more than two classes is printed by vitrail decide RUN.";

export class Deciding {
  // chosen(version) when another decision shall answer; refused(problem) when the server says no.
  constructor(about, chosen, refused) {
    this.about = about;
    this.chosen = chosen;
    this.refused = refused;
    this.told = null;
    if (!about.decisions?.length) return;
    byId("deciding").hidden = false;
    byId("deciding").addEventListener("toggle", () => this.open());
    byId("decision").addEventListener("change", () => this.choose());
    byId("subject").addEventListener("change", () => this.begin());
    byId("threshold").addEventListener("input", () => this.count());
    this.renew();
  }

  // The names of all decisions, as the server has them now; what they cost is asked for when somebody looks.
  renew() {
    const { decision, decisions: names } = this.about;
    const others = names.filter((name) => name !== decision).map((name) => element("option", { value: name }, name));
    byId("decision").replaceChildren(element("option", { value: "" }, `${decision}, which is in use`), ...others);
    byId("decision").disabled = true;
    this.told = null;
    this.open();
  }

  async open() {
    if (!byId("deciding").open || this.told) return;
    try {
      this.told = await askDecisions();
    } catch (problem) {
      byId("decision-says").textContent = problem.message;
      this.refused(problem);
      return;
    }
    byId("decision").disabled = false;
    const { scores = [], why = "" } = this.told.validation;
    this.scores = scores.map((one) => ({ name: one.name, with: floats(one.with), without: floats(one.without) }));
    byId("subject").replaceChildren(...scores.map(({ name }) => element("option", {}, name)));
    this.why = why;
    this.describe();
  }

  get version() {
    const name = byId("decision").value || this.about.decision;
    return this.told.versions.find((one) => one.name === name);
  }

  choose() {
    useDecision(byId("decision").value);
    this.chosen(this.version);
    this.describe();
  }

  describe() {
    const { rule = "", by, time = "" } = this.version;
    const kept = [by ? `by ${by}` : "", time.slice(0, 16).replace("T", " ")].filter(Boolean).join(", ");
    byId("decision-says").textContent = [rule, kept && `kept ${kept}`].filter(Boolean).join("; ");
    const positive = this.scores?.find(({ name }) => name === this.version.positive);
    if (positive) byId("subject").value = positive.name;
    const uncounted = this.version.ratios.length && this.scores.length && !this.scores[0].name;
    byId("decision-why").textContent = uncounted ? MOVED_CLASSES : this.why;
    byId("consequences").hidden = uncounted || !this.scores.length;
    if (!byId("consequences").hidden) this.begin();
  }

  get subject() {
    return this.scores[Math.max(0, byId("subject").selectedIndex)];
  }

  // The slider begins where the decision is.
  begin() {
    const named = Boolean(this.subject.name);
    for (const part of document.querySelectorAll("[data-of-subject]")) part.hidden = !named;
    byId("threshold").value = this.own;
    this.count();
  }

  // The threshold of the decision: of a label its own, of two classes that of its class, of more the least confidence.
  get own() {
    const { thresholds, positive, sure } = this.version;
    const { name } = this.subject;
    if (!name) return sure || 0;
    if (this.about.task === "multilabel") return thresholds[this.about.classes.indexOf(name)] ?? 0.5;
    if (positive === name) return thresholds[0] ?? 0.5;
    return positive ? 1 - (thresholds[0] ?? 0.5) : 0.5;
  }

  // Images whose score, at the prevalence of the decision, lies below a threshold; the scores rise.
  below(scores, threshold) {
    const { ratios = [] } = this.version;
    const k = this.about.classes.indexOf(this.subject.name);
    const several = this.about.task === "multilabel";
    const ratio = ratios.length && k >= 0 ? (several ? ratios[k] : ratios[k] / ratios[1 - k]) : 1;
    const least = several ? threshold : Math.fround(threshold);
    let [low, high] = [0, scores.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (moved(scores[middle], ratio) < least) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  count() {
    const at = Number(byId("threshold").value);
    byId("threshold-says").textContent = fixed(at);
    const rows = [[`by ${this.version.name}`, this.own], ["at the slider", at]];
    const { name } = this.subject;
    const heads = ["", "From", ...(name ? ["Missed", "False alarms"] : ["Unanswered", "Wrong of the answered"])];
    byId("cost-heads").replaceChildren(...heads.map((head) => element("th", { scope: "col" }, head)));
    byId("cost-rows").replaceChildren(...rows.map(([words, from]) => this.row(words, from)));
    byId("decision-command").textContent = `vitrail decide RUN ${this.flags(at)} --keep ${NAME} --use ${NAME}`;
    const images = counted(this.told.validation.n, "validation picture", "validation pictures");
    byId("decision-counted").textContent = `Counted on the ${images} that rules are fitted to, with 95 % intervals.`;
  }

  // Flags that keep what the slider shows, and what else the decision was asked for by.
  flags(at) {
    const { rule, at: stated = {}, alpha, prevalence = {} } = this.version.request;
    const { name } = this.subject;
    const several = this.about.task === "multilabel";
    const shares = { ...(several ? stated : {}), [name]: Number(at.toFixed(3)) };
    const flags = [
      several && rule && ["--rule", rule],
      name ? ["--at", listed(shares)] : ["--abstain", this.share(at).toFixed(3)],
      alpha && ["--alpha", String(alpha)],
      Object.keys(prevalence).length && ["--prevalence", listed(prevalence)],
    ];
    return flags.filter(Boolean).map(([flag, value]) => `${flag} ${quoted(value)}`).join(" ");
  }

  row(words, from) {
    const { name, with: there, without } = this.subject;
    const [low, lowOthers] = [this.below(there, from), this.below(without, from)];
    const all = there.length + without.length;
    const cells = name
      ? [rate(low, there.length), rate(without.length - lowOthers, without.length)]
      : [rate(low + lowOthers, all), rate(without.length - lowOthers, all - low - lowOthers)];
    const parts = [fixed(from), ...cells].map((cell) => element("td", {}, cell));
    return element("tr", {}, element("th", { scope: "row" }, words), ...parts);
  }

  // Of the images that stay unanswered below a confidence.
  share(at) {
    const { with: right, without: wrong } = this.subject;
    return (this.below(right, at) + this.below(wrong, at)) / Math.max(1, right.length + wrong.length);
  }
}

// A probability at another prevalence, rounded as the model's own are.
export function moved(probability, ratio) {
  if (ratio === 1) return probability;
  const up = probability * ratio;
  return Math.fround(up / (up + (1 - probability)));
}

// A count of some as words, with Wilson's interval.
export function rate(count, total) {
  if (!total) return "–";
  const [low, high] = wilson(count, total).map((share) => (100 * share).toFixed(1));
  return `${count} of ${total}: ${((100 * count) / total).toFixed(1)} % (${low} to ${high})`;
}

// As vitrail.stats.intervals.wilson_interval, which explains both corrections.
function wilson(count, total) {
  const share = count / total;
  const z = Z * (1 + 1 / total);
  const middle = share + z ** 2 / (2 * total);
  const half = z * Math.sqrt((share * (1 - share)) / total + z ** 2 / (4 * total ** 2));
  const all = 1 + z ** 2 / total;
  const low = count ? Math.min((middle - half) / all, (RARE[count] ?? Infinity) / total) : 0;
  const rest = total - count;
  return [low, rest ? Math.max((middle + half) / all, 1 - (RARE[rest] ?? Infinity) / total) : 1];
}

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, place) => view.getFloat32(4 * place, true));
}

const listed = (shares) => Object.entries(shares).map(([name, share]) => `${name}=${share}`).join(",");
const quoted = (word) => (/^[\w=.,-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);
