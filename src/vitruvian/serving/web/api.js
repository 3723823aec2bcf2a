/** Requests to the server. Every failure is an `ApiError` whose message can be shown as it is. */

/** An answer that is an error, with the parts that the server names. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, hint?: string | null, retrySeconds?: number | null}} parts
   */
  constructor(message, { status = 0, hint = null, retrySeconds = null } = {}) {
    super(message);
    this.status = status;
    this.hint = hint;
    this.retrySeconds = retrySeconds; // after which a server that is busy, or loads a model, asks to try again
  }
}

const MAX_RETRIES = 5;

const KEY = "vitruvian-api-key";

/** @returns {string} */
export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** @param {string} key */
export function setApiKey(key) {
  sessionStorage.setItem(KEY, key);
}

/**
 * Send a request; addresses are relative to the page, so that it works under a prefix.
 * @param {string} path
 * @param {RequestInit & {query?: Object<string, any>}} options
 * @returns {Promise<Response>}
 */
export async function request(path, { query = {}, headers = {}, ...options } = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined) continue;
    search.set(name, typeof value === "object" ? JSON.stringify(value) : String(value));
  }
  const sent = new Headers(headers);
  if (apiKey()) sent.set("Authorization", `Bearer ${apiKey()}`);
  const url = path.replace(/^\//, "") + (search.size ? `?${search}` : "");
  let response;
  try {
    response = await fetch(url, { ...options, headers: sent });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.", { hint: "Is vitruvian serve still running?" });
  }
  if (!response.ok) throw await readError(response);
  return response;
}

/** @param {Response} response @returns {Promise<ApiError>} */
async function readError(response) {
  const status = response.status;
  const retrySeconds = status === 429 || status === 503 ? retryAfter(response) : null;
  try {
    const { error } = await response.json();
    return new ApiError(error.message, { status, hint: error.hint, retrySeconds });
  } catch {
    return new ApiError(`The server answered with status ${status}.`, { status, retrySeconds });
  }
}

/** @param {Response} response @returns {number} in seconds; the header may also be a date, or missing */
function retryAfter(response) {
  const seconds = parseFloat(response.headers.get("Retry-After") ?? "");
  return Number.isFinite(seconds) ? seconds : 1;
}

/**
 * Send something, and again when a server that is busy asks for it, a few times.
 * @template T
 * @param {() => Promise<T>} send
 * @param {{signal?: AbortSignal, onWait?: (seconds: number) => void}} options  `onWait` is called before each wait
 * @returns {Promise<T>}
 */
export async function retrying(send, { signal, onWait = () => undefined }) {
  for (let retries = 0; ; retries += 1) {
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ApiError) || error.retrySeconds === null || retries === MAX_RETRIES) throw error;
      onWait(error.retrySeconds);
      await wait(error.retrySeconds, signal);
    }
  }
}

/** @param {number} seconds @param {AbortSignal} [signal] @returns {Promise<void>} */
export function wait(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

/**
 * @param {string} path
 * @param {RequestInit & {query?: Object<string, any>}} options
 * @returns {Promise<any>}
 */
export async function requestJson(path, options = {}) {
  return (await request(path, options)).json();
}

/**
 * Send options as JSON.
 * @param {string} path
 * @param {Object<string, any>} body
 * @param {AbortSignal} [signal]
 * @returns {Promise<Response>}
 */
export function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", body: JSON.stringify(body), headers, signal });
}

/**
 * Return an address that an image or video element can load: with an API key, the file itself.
 * @param {string} href
 * @returns {Promise<string>}
 */
export async function mediaUrl(href) {
  if (!apiKey()) return href.replace(/^\//, "");
  return URL.createObjectURL(await (await request(href)).blob());
}
