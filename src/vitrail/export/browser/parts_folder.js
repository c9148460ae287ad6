// Where the parts of the page are: in files beside it.

const RELOADED = "vitrail-reloaded";

export const openWorker = () => new Worker(new URL("./worker.js", import.meta.url), { type: "module" });

export async function readPart(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.arrayBuffer();
}

// The file of the engine, whether it may use a graphics processor, and else why not.
export async function chooseRuntime() {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  if (adapter) return { gpu: true, binary: "ort-wasm-simd-threaded.asyncify.wasm" };
  const why = navigator.gpu ? "this browser finds none" : "this browser has no WebGPU here";
  return { gpu: false, binary: "ort-wasm-simd-threaded.wasm", why };
}

// Start the service worker; where its headers are missing yet, load the page once more, with them.
export async function prepare() {
  try {
    await navigator.serviceWorker.register("service.js");
    await navigator.serviceWorker.ready;
    if (self.crossOriginIsolated) return sessionStorage.removeItem(RELOADED);
    if (sessionStorage.getItem(RELOADED)) return null;
    sessionStorage.setItem(RELOADED, "yes");
  } catch {
    return null; // not from here, such as over plain http: one thread, which the page says
  }
  location.reload();
  return new Promise(() => {});
}
