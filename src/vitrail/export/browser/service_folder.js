// Keeps the files of the page for use without a network, and adds the two headers that a page with threads needs.

const FILES = `vitrail ${self.registration.scope}`;
const HEADERS = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };

self.addEventListener("install", () => self.skipWaiting());

self.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method === "GET" && url.startsWith(self.registration.scope)) event.respondWith(answer(event));
});

// From the server, so that nothing old is answered; without it what the server gave last.
async function answer(event) {
  const files = await caches.open(FILES);
  let response = null;
  try {
    response = await fetch(event.request);
    if (response.ok) event.waitUntil(files.put(event.request, response.clone()).catch(() => {})); // no room: not kept
  } catch (problem) {
    response = await files.match(event.request);
    if (!response) throw problem;
  }
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
