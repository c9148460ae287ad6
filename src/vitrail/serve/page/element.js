// Elements of the page: found by id, or made from a tag, attributes and what is inside.

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...inside) {
  const made = document.createElement(tag);
  set(made, attributes);
  made.append(...inside.filter((part) => part !== null && part !== undefined));
  return made;
}

export function drawn(tag, attributes = {}, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(made, attributes);
  made.append(...inside);
  return made;
}

function set(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
}

// What a screen reader says next; sighted readers see the same elsewhere.
export function say(sentence) {
  byId("says").textContent = sentence;
}
