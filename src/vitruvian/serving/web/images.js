/** An image on the server: uploaded once, and again if the server has dropped it. */

import { ApiError, post, request, requestJson } from "./api.js";

export class StoredImage {
  /**
   * @param {Blob} blob
   * @param {string} name
   */
  constructor(blob, name) {
    this.blob = blob;
    this.name = name;
    /** @type {Promise<string> | null} */
    this.id = null;
  }

  /** Upload the image, unless it is there already. @returns {Promise<string>} its id */
  upload() {
    this.id ??= this.send().catch((error) => {
      this.id = null;
      throw error;
    });
    return this.id;
  }

  /** @returns {Promise<string>} @private */
  async send() {
    const headers = { "Content-Type": this.blob.type || "application/octet-stream" };
    const query = { name: this.name };
    return (await requestJson("v1/images", { method: "POST", body: this.blob, headers, query })).id;
  }

  /**
   * Run a task.
   * @param {string} task
   * @param {Object<string, any>} options
   * @param {AbortSignal} [signal]
   * @returns {Promise<Response>}
   */
  async run(task, options, signal) {
    try {
      return await post(`v1/images/${await this.upload()}/${task}`, options, signal);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
      this.id = null; // it has expired
      return post(`v1/images/${await this.upload()}/${task}`, options, signal);
    }
  }

  /** Remove it from the server; it would expire anyway. */
  async forget() {
    const id = await this.id?.catch(() => null);
    if (id) await request(`v1/images/${id}`, { method: "DELETE" }).catch(() => undefined);
  }
}
