/** Jobs: followed, cancelled, and their files. */

import { ApiError, request, requestJson, wait } from "./api.js";
import { announce, button, fileSize, find, make, percent, saveFile } from "./dom.js";
import { TASK_VIEWS } from "./tasks.js";

const FINAL = ["done", "failed", "cancelled"];
const SHOWN_FILES = 6;
export const FOLLOW_SECONDS = 1; // between looks at jobs

/** @param {any} job @returns {boolean} */
export function hasEnded(job) {
  return FINAL.includes(job.state);
}

/** Return how many files a job has; the list of jobs only tells their number. @param {any} job @returns {number} */
function fileCount(job) {
  return job.file_count ?? job.files?.length ?? 0;
}

/** @param {string} name @returns {string} */
function baseName(name) {
  return name.split("/").at(-1) ?? name;
}

/** @param {any[]} files @param {(file: any) => void} save @returns {HTMLElement} */
function fileList(files, save) {
  const rows = files.slice(0, SHOWN_FILES).map((file) => {
    const one = button({ icon: "download", kind: "file", label: `Download ${file.name}`, onclick: () => save(file) });
    one.append(make("span.file-name", {}, baseName(file.name)));
    return make("li", {}, one, make("span.muted", {}, fileSize(file.bytes)));
  });
  if (files.length > SHOWN_FILES) rows.push(make("li.muted", {}, `and ${files.length - SHOWN_FILES} more, in the ZIP`));
  return make("ul.files", {}, ...rows);
}

/** Return the jobs without their files, which only `v1/jobs/{id}` has. @returns {Promise<any[]>} */
export async function listJobs() {
  return (await requestJson("v1/jobs")).jobs;
}

/**
 * Looks at jobs until they end, at one after another: streams of their events would take a connection each, and a
 * browser has six to a server.
 */
class Follower {
  constructor() {
    /** @type {Set<JobCard>} */
    this.cards = new Set();
    this.looks = false;
  }

  /** @param {JobCard} card */
  async add(card) {
    this.cards.add(card);
    if (this.looks) return;
    this.looks = true;
    while (this.cards.size) {
      await wait(FOLLOW_SECONDS);
      for (const one of this.cards) await one.look();
    }
    this.looks = false;
  }
}

const follower = new Follower();

/** A job with its progress and files. */
export class JobCard {
  /**
   * @param {any} job
   * @param {{onEnd?: (card: JobCard) => void, onDelete?: (card: JobCard) => void, follows?: boolean}} options
   *   `follows`: until the job ends, and lists its files; otherwise the owner of the card updates it
   */
  constructor(job, { onEnd = () => undefined, onDelete = () => undefined, follows = true } = {}) {
    this.job = job;
    this.onEnd = onEnd;
    this.onDelete = onDelete;
    this.follows = follows;
    this.removed = false;
    this.isLost = false; // whether the server did not answer
    /** @type {HTMLVideoElement | null} its result */
    this.video = null;
    this.element = make("article.job", { "data-state": job.state });
    this.update(job);
    if (follows && !hasEnded(job)) follower.add(this);
  }

  /** Whether the job has ended, or was removed. */
  get ended() {
    return this.removed || hasEnded(this.job);
  }

  /** Stop following. */
  close() {
    follower.cards.delete(this);
  }

  /** Ask for the job's state; the server may be away for a while. */
  async look() {
    try {
      const job = await requestJson(`v1/jobs/${this.job.id}`);
      if (follower.cards.has(this)) this.update(job);
      if (this.isLost) this.error?.remove();
      this.isLost = false;
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return this.forget();
      this.isLost = true;
      this.showError(/** @type {Error} */ (error));
    }
    if (!hasEnded(this.job) || !follower.cards.has(this)) return undefined;
    this.close();
    announce(`${TASK_VIEWS[this.job.task].title}: ${this.job.state}`);
    return this.onEnd(this);
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
    const parts = ended ? [this.files(), this.failures(), this.endedActions()] : [this.bar, this.runningActions()];
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
    const archive = fileCount(this.job) > 1 && button({
      icon: "download", text: "All as ZIP", kind: "small",
      onclick: () => this.save(`v1/jobs/${this.job.id}/archive`, `${this.job.task}.zip`),
    });
    const remove = button({ icon: "trash", label: "Delete the job", kind: "small", onclick: () => this.remove() });
    return make("footer", {}, archive || make("span"), remove);
  }

  /** List the files, or in a list of jobs a button that lists them. @private */
  files() {
    const count = fileCount(this.job);
    if (!count) return make("div");
    if (this.follows) return fileList(this.job.files, (file) => this.save(file.href, file.name));
    const text = `${count} file${count > 1 ? "s" : ""}`;
    const show = button({ icon: "more", text, kind: "file", label: `Show ${text}`, onclick: () => this.showFiles(show) });
    return show;
  }

  /** @param {HTMLElement} show @private */
  async showFiles(show) {
    try {
      const { files } = await requestJson(`v1/jobs/${this.job.id}`);
      const list = fileList(files, (file) => this.save(file.href, file.name));
      show.replaceWith(list);
      find("button", list).focus();
    } catch (error) {
      this.showError(/** @type {Error} */ (error));
    }
  }

  /** @private */
  failures() {
    return make("div", {}, ...this.job.failures.slice(0, 5).map((/** @type {string} */ text) => make("p.error", { role: "alert" }, text)));
  }

  /** @param {string} href @param {string} name @private */
  async save(href, name) {
    try {
      saveFile(await (await request(href)).blob(), baseName(name));
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
    if (await this.act(`v1/jobs/${this.job.id}`, "DELETE")) this.forget();
  }

  /** Remove the card of a job that was deleted. */
  forget() {
    if (this.removed) return;
    this.close();
    this.removed = true;
    this.element.remove();
    this.onDelete(this);
  }

  /** @param {Error} error */
  showError(error) {
    this.error?.remove();
    this.error = make("p.error", { role: "alert" }, error.message);
    this.element.append(this.error);
  }
}
