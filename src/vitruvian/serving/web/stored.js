/** A file on the server: an image or a video, uploaded once, and again if the server has dropped it. */

import { ApiError, post, request, requestJson, retrying } from "./api.js";

export class StoredFile {
  /**
   * @param {"images" | "videos"} kind
   * @param {Blob} blob
   * @param {string} name
   */
  constructor(kind, blob, name) {
    this.kind = kind;
    this.blob = blob;
    this.name = name;
    /** @type {Promise<any> | null} what the server says about it */
    this.info = null;
  }

  /** Upload the file, unless it is there already. @returns {Promise<any>} what the server says about it */
  upload() {
    this.info ??= this.store().catch((error) => {
      this.info = null;
      throw error;
    });
    return this.info;
  }

  /** @returns {Promise<any>} @private */
  store() {
    const headers = { "Content-Type": this.blob.type || "application/octet-stream" };
    return requestJson(`v1/${this.kind}`, { method: "POST", body: this.blob, headers, query: { name: this.name } });
  }

  /**
   * Run a task, or add prompts to a video; when the server is busy, wait for it.
   * @param {string} what
   * @param {Object<string, any>} options
   * @param {{signal?: AbortSignal, onWait?: (seconds: number) => void}} waiting  see `retrying`
   * @returns {Promise<Response>}
   */
  run(what, options, waiting = {}) {
    return retrying(() => this.send(what, options, waiting.signal), waiting);
  }

  /** @param {string} what @param {Object<string, any>} options @param {AbortSignal} [signal] @returns {Promise<Response>} @private */
  async send(what, options, signal) {
    const send = async () => post(`v1/${this.kind}/${(await this.upload()).id}/${what}`, options, signal);
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.info = null; // it has expired
      return send();
    }
  }

  /** Remove it from the server; it would expire anyway. */
  async forget() {
    const info = await this.info?.catch(() => null);
    if (info) await request(`v1/${this.kind}/${info.id}`, { method: "DELETE" }).catch(() => undefined);
  }
}
