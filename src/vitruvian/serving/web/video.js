/** A video in the page: played, scrubbed by frame, and drawn under the result of a job. */

import { mediaUrl } from "./api.js";
import { button, find, icon, make } from "./dom.js";

const USUAL_RATE = 30; // until the server tells the rate of the file

export class Video {
  /**
   * @param {File} file
   * @param {() => void} onFrame  called when another frame is shown
   */
  constructor(file, onFrame) {
    this.file = file;
    this.onFrame = onFrame;
    this.rate = USUAL_RATE;
    this.url = URL.createObjectURL(file);
    this.element = makeVideo(this.url);
    /** @type {HTMLVideoElement | null} */
    this.result = null;
    this.bar = find("#player");
  }

  /** Load the video. */
  async open() {
    await loaded(this.element);
    await this.seek(0);
    this.element.addEventListener("seeked", () => this.changed());
    this.element.addEventListener("pause", () => this.changed());
    this.element.addEventListener("play", () => this.tick());
  }

  /** Take the frame rate, which browsers do not tell, from what the server says. @param {{rate: number}} info */
  setInfo({ rate }) {
    this.rate = rate;
    if (this.scrubber) this.scrubber.max = String(this.frames - 1);
    this.changed();
  }

  get width() {
    return this.element.videoWidth;
  }

  get height() {
    return this.element.videoHeight;
  }

  /** Number of the frame that is shown. */
  get frame() {
    return Math.min(this.frames - 1, Math.floor(this.element.currentTime * this.rate + 0.25));
  }

  get frames() {
    return Math.max(1, Math.round(this.element.duration * this.rate));
  }

  /** @param {number} frame @returns {Promise<void>} */
  async seek(frame) {
    const time = Math.min((Math.min(Math.max(frame, 0), this.frames - 1) + 0.5) / this.rate, this.element.duration);
    await Promise.all([seekTo(this.element, time), this.result && seekTo(this.result, time)]);
    this.changed();
  }

  /** Show the video that a job wrote over this one, or none. @param {HTMLVideoElement | null} result */
  async showResult(result) {
    if (result === this.result) return;
    this.result?.pause();
    this.result = result;
    if (result) await seekTo(result, this.element.currentTime);
    if (!this.element.paused) await this.result?.play();
    this.changed();
  }

  /**
   * The result as a layer.
   * @param {import("./layers.js").Backdrop} backdrop  seen where the result is transparent
   * @returns {import("./layers.js").Layer | null}
   */
  layer(backdrop) {
    const { result, width, height } = this;
    if (!result) return null;
    return {
      draw: (context, scale) => {
        backdrop.draw(context, scale, width, height);
        context.drawImage(result, 0, 0, width, height);
      },
      hover: () => null,
    };
  }

  async playOrPause() {
    const { element, result } = this;
    if (!element.paused) {
      element.pause();
      result?.pause();
      return;
    }
    if (this.frame >= this.frames - 1) await this.seek(0);
    await Promise.all([element.play(), result?.play()]);
  }

  /** Forget the video. */
  close() {
    this.element.pause();
    this.result?.pause();
    URL.revokeObjectURL(this.url);
    this.bar.hidden = true;
    this.bar.replaceChildren();
  }

  /** Draw while it plays. @private */
  tick() {
    this.changed();
    if (!this.element.paused) requestAnimationFrame(() => this.tick());
  }

  /** @private */
  changed() {
    if (this.scrubber) {
      this.scrubber.value = String(this.frame);
      this.scrubber.setAttribute("aria-valuetext", `frame ${this.frame}`);
      /** @type {HTMLElement} */ (this.position).textContent = `${this.frame} / ${this.frames - 1}`;
      const name = this.element.paused ? "play" : "pause";
      this.play?.replaceChildren(icon(name));
      this.play?.setAttribute("aria-label", this.element.paused ? "Play" : "Pause");
    }
    this.onFrame();
  }

  /** Show the controls under the image. */
  showControls() {
    this.play = button({ icon: "play", label: "Play", kind: "tool", onclick: () => this.playOrPause() });
    const back = button({ icon: "back", label: "One frame back", kind: "tool", onclick: () => this.seek(this.frame - 1) });
    const next = button({ icon: "next", label: "One frame on", kind: "tool", onclick: () => this.seek(this.frame + 1) });
    this.scrubber = /** @type {HTMLInputElement} */ (
      make("input", { type: "range", min: 0, max: this.frames - 1, step: 1, value: 0, "aria-label": "Frame", id: "scrubber" })
    );
    this.scrubber.addEventListener("input", () => this.seek(Number(this.scrubber?.value)));
    this.position = make("output.time", { id: "frame-number" }, "0");
    this.bar.replaceChildren(back, this.play, next, this.scrubber, this.position);
    this.bar.hidden = false;
    this.changed();
  }
}

/** Load the video that a job wrote. @param {string} href @returns {Promise<HTMLVideoElement>} */
export async function openResult(href) {
  const result = makeVideo(await mediaUrl(href));
  await loaded(result);
  return result;
}

/** @param {string} url @returns {HTMLVideoElement} */
function makeVideo(url) {
  const video = document.createElement("video");
  video.muted = true;
  video.playsInline = true;
  video.preload = "auto";
  video.src = url;
  return video;
}

/** @param {HTMLVideoElement} video @returns {Promise<void>} */
function loaded(video) {
  return new Promise((resolve, reject) => {
    video.addEventListener("loadeddata", () => resolve(), { once: true });
    video.addEventListener("error", () => reject(new Error("This browser cannot show the video.")), { once: true });
  });
}

/** @param {HTMLVideoElement} video @param {number} time @returns {Promise<void>} */
function seekTo(video, time) {
  return new Promise((resolve) => {
    video.addEventListener("seeked", () => resolve(), { once: true });
    video.currentTime = Math.min(time, video.duration);
  });
}
