/** Jobs: started, followed, cancelled, and their files. */

import { followJob, request, requestJson } from "./api.js";
import { announce, button, fileSize, make, percent, saveFile } from "./dom.js";
import { TASK_VIEWS } from "./tasks.js";

const FINAL = ["done", "failed", "cancelled"];

/** @param {any} job @returns {boolean} */
export function hasEnded(job) {
  return FINAL.includes(job.state);
}

/** @returns {Promise<any[]>} */
export async function listJobs() {
  return (await requestJson("v1/jobs")).jobs;
}

/** A job with its progress and files, which follows the job until it ends. */
export class JobCard {
  /**
   * @param {any} job
   * @param {{onEnd?: (job: any) => void, onDelete?: () => void, follows?: boolean}} options
   */
  constructor(job, { onEnd = () => undefined, onDelete = () => undefined, follows = true } = {}) {
    this.job = job;
    this.onEnd = onEnd;
    this.onDelete = onDelete;
    this.controller = new AbortController();
    this.removed = false;
    this.element = make("article.job", { "data-state": job.state });
    this.update(job);
    if (follows && !hasEnded(job)) this.follow();
  }

  /** Whether the job has ended, or was removed. */
  get ended() {
    return this.removed || hasEnded(this.job);
  }

  /** Stop following. */
  close() {
    this.controller.abort();
  }

  /** @private */
  async follow() {
    try {
      await followJob(this.job.id, (job) => this.update(job), this.controller.signal);
    } catch (error) {
      if (!this.controller.signal.aborted) this.showError(/** @type {Error} */ (error));
    }
    if (hasEnded(this.job)) {
      announce(`${TASK_VIEWS[this.job.task].title}: ${this.job.state}`);
      this.onEnd(this.job);
    }
  }

  /** Show another state of the job. @param {any} job */
  update(job) {
    const ended = hasEnded(job);
    if (this.element.dataset.state === job.state && this.bar && !ended) {
      this.job = job;
      this.showProgress();
      return;
    }
    this.job = job;
    this.element.dataset.state = job.state;
    const title = make("strong", {}, TASK_VIEWS[job.task].title);
    const heading = make("header", {}, make("div", {}, title, make("span.muted", {}, job.sources.join(", "))), make("span.state", {}, job.state));
    this.bar = /** @type {HTMLProgressElement} */ (make("progress", { max: 1, "aria-label": "Progress" }));
    this.detail = make("span.muted");
    const parts = ended ? [this.fileList(), this.failures(), this.endedActions()] : [this.bar, this.runningActions()];
    this.element.replaceChildren(heading, ...parts);
    this.showProgress();
  }

  /** @private */
  showProgress() {
    const { frame, frames, progress, state } = this.job;
    if (this.bar) this.bar.value = progress;
    if (this.detail) this.detail.textContent = state === "queued" ? "waiting" : frames ? `frame ${frame} of ${frames}` : percent(progress);
  }

  /** @private */
  runningActions() {
    const cancel = button({ text: "Cancel", kind: "small", onclick: () => this.act(`v1/jobs/${this.job.id}/cancel`, "POST") });
    return make("footer", {}, this.detail, cancel);
  }

  /** @private */
  endedActions() {
    const archive = button({
      icon: "download", text: "All as ZIP", kind: "small",
      onclick: () => this.save(`v1/jobs/${this.job.id}/archive`, `${this.job.task}.zip`),
    });
    const remove = button({ icon: "trash", label: "Delete the job", kind: "small", onclick: () => this.remove() });
    return make("footer", {}, this.job.files.length > 1 ? archive : make("span"), remove);
  }

  /** @private */
  fileList() {
    const rows = this.job.files.slice(0, 20).map((/** @type {any} */ file) =>
      make("li", {}, button({
        icon: "download", text: file.name, kind: "file", label: `Download ${file.name}`,
        onclick: () => this.save(file.href, file.name),
      }), make("span.muted", {}, fileSize(file.bytes))),
    );
    if (this.job.files.length > 20) rows.push(make("li.muted", {}, `and ${this.job.files.length - 20} more`));
    return make("ul.files", {}, ...rows);
  }

  /** @private */
  failures() {
    return make("div", {}, ...this.job.failures.slice(0, 5).map((/** @type {string} */ text) => make("p.error", { role: "alert" }, text)));
  }

  /** @param {string} href @param {string} name @private */
  async save(href, name) {
    try {
      saveFile(await (await request(href)).blob(), name.split("/").at(-1) ?? name);
    } catch (error) {
      this.showError(/** @type {Error} */ (error));
    }
  }

  /** @param {string} path @param {string} method @private */
  async act(path, method) {
    try {
      await request(path, { method });
      return true;
    } catch (error) {
      this.showError(/** @type {Error} */ (error));
      return false;
    }
  }

  /** @private */
  async remove() {
    if (!(await this.act(`v1/jobs/${this.job.id}`, "DELETE"))) return;
    this.close();
    this.removed = true;
    this.element.remove();
    this.onDelete();
  }

  /** @param {Error} error @private */
  showError(error) {
    this.element.append(make("p.error", { role: "alert" }, error.message));
  }
}
