/** The page: an image or a video, the tasks that are run on it, and their layers. */

import { ApiError, requestJson, retrying, setApiKey, wait } from "./api.js";
import { announce, button, choice, find, icon, make, scrollWithin, toggle } from "./dom.js";
import { FOLLOW_SECONDS, JobCard, listJobs } from "./jobs.js";
import { Backdrop, ColorLayer, DepthLayer, MaskLayer, MatteLayer } from "./layers.js";
import { OrbitView } from "./orbit.js";
import {
  CodeSection, PromptControls, backgroundControls, downloads, errorBox, layerControls, missingModel, nobodyNote, optionControls,
  section,
} from "./panel.js";
import { Prompts, promptOptions, trackPrompt } from "./prompts.js";
import { isVideo, listenForFiles } from "./sources.js";
import { StoredFile } from "./stored.js";
import { PEOPLE_TASKS, TASK_ORDER, TASK_VIEWS } from "./tasks.js";
import { Video, openResult } from "./video.js";
import { Viewer } from "./viewer.js";

const SHOWN_JOBS = 50;
const LOADING_MS = 1500; // between looks at models that are loaded

/**
 * A task on the image that is open.
 * @typedef {Object} Run
 * @property {string} task
 * @property {"idle" | "running" | "waiting" | "done" | "error"} status  "waiting": for a server that is busy
 * @property {import("./layers.js").Layer | null} layer
 * @property {Error | null} error
 * @property {number} seconds  that it took, or until it is tried again
 * @property {boolean} visible
 * @property {number} opacity
 * @property {Object<string, any>} options
 * @property {AbortController | null} controller
 * @property {JobCard[]} cards  jobs with the video that is open, the newest first
 * @property {Backdrop} backdrop
 */

class Page {
  constructor() {
    this.viewer = new Viewer();
    /** @type {Map<string, any>} what is served, by task */
    this.models = new Map();
    /** @type {any} */
    this.layouts = null;
    /** @type {{file: File, bitmap: ImageBitmap} | null} */
    this.image = null;
    /** @type {Video | null} */
    this.video = null;
    /** @type {StoredFile | null} the image or video on the server */
    this.stored = null;
    /** @type {Map<string, Run>} */
    this.runs = new Map(TASK_ORDER.map((task) => [task, newRun(task)]));
    this.active = "pose";
    this.prompts = new Prompts((ids) => this.promptsChanged(ids));
    /** @type {Map<string, any>} masks of prompted objects, by frame and id */
    this.answers = new Map();
    /** @type {Map<string, "busy" | "again">} */
    this.asking = new Map();
    this.everyone = false;
    this.uploading = false;
    this.loading = false; // whether the server still loads models
    /** @type {OrbitView | null} */
    this.orbit = null;
    /** @type {PromptControls | null} */
    this.promptControls = null;
    /** @type {CodeSection | null} */
    this.code = null;
    /** @type {(() => void) | null} after prompts have changed */
    this.updateStart = null;
    this.space = false; // whether the 3D view is shown
  }

  /** Ask the server what it can do, and listen to everything. */
  async start() {
    listenForFiles((file) => this.openFile(file), (error) => this.showTrouble(error));
    this.listen();
    await this.connect();
  }

  /** @private */
  async connect() {
    try {
      const [served, layouts] = await Promise.all([requestJson("v1/models"), requestJson("v1/layouts")]);
      this.models = new Map(served.models.map((/** @type {any} */ model) => [model.task, model]));
      this.layouts = layouts;
      const device = served.models.find((/** @type {any} */ model) => model.device)?.device;
      const wasLoading = this.loading;
      this.loading = served.models.some((/** @type {any} */ model) => model.state === "loading");
      find("#server").textContent = this.loading ? "Loading models…" : [`v${served.version}`, device].filter(Boolean).join(" · ");
      if (this.loading) setTimeout(() => this.connect(), LOADING_MS);
      if (this.loading && wasLoading) return undefined; // the panel stays as it is, with the focus
      if (!this.models.has(this.active)) this.active = TASK_ORDER.find((task) => this.models.has(task)) ?? "pose";
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return this.askKey();
      find("#server").textContent = "Offline";
      this.showTrouble(/** @type {Error} */ (error));
    }
    this.renderTasks();
    this.renderPanel();
    return this.runRefused();
  }

  /** Run what was opened or asked for before the server had its models. @private */
  runRefused() {
    for (const run of this.runs.values()) {
      const refused = run.error instanceof ApiError && run.error.retrySeconds !== null;
      if (refused && !this.loading) this.retry(run);
      else if (this.image && run.task === this.active && run.status === "idle") this.select(run.task);
    }
  }

  /** @private */
  askKey() {
    const dialog = /** @type {HTMLDialogElement} */ (find("#key"));
    dialog.showModal();
    dialog.addEventListener(
      "close",
      () => {
        setApiKey(/** @type {HTMLInputElement} */ (find("#key input")).value.trim());
        this.connect();
      },
      { once: true },
    );
  }

  // ------------------------------------------------------------------------------------------ files

  /** @param {File} file */
  async openFile(file) {
    this.showTrouble(null);
    try {
      if (isVideo(file)) await this.openVideo(file);
      else await this.openImage(file);
    } catch (error) {
      this.showTrouble(/** @type {Error} */ (error));
    }
  }

  /** @param {File} file @private */
  async openImage(file) {
    let bitmap;
    try {
      bitmap = await createImageBitmap(file);
    } catch {
      throw new ApiError(`${file.name}: this browser cannot show it as an image.`, { hint: "Use JPEG, PNG or WebP." });
    }
    this.closeSource();
    this.image = { file, bitmap };
    this.stored = new StoredFile("images", file, file.name);
    this.opened(file.name, bitmap.width, bitmap.height);
    this.viewer.setBase(bitmap, bitmap.width, bitmap.height);
    this.select(this.usableTask("images"));
  }

  /** @param {File} file @private */
  async openVideo(file) {
    const video = new Video(file, () => this.frameChanged());
    try {
      await video.open();
    } catch (error) {
      video.close();
      throw new ApiError(`${file.name}: ${/** @type {Error} */ (error).message}`, { hint: "Use MP4 with H.264, or WebM." });
    }
    this.closeSource();
    this.video = video;
    this.stored = new StoredFile("videos", file, file.name);
    video.showControls();
    this.opened(file.name, video.width, video.height);
    this.viewer.setBase(video.element, video.width, video.height);
    this.select(this.models.has("track") ? "track" : this.usableTask("jobs"));
    await this.uploadVideo(video);
  }

  /** Upload a video while it is looked at: clicks and tasks need it on the server. @param {Video} video @private */
  async uploadVideo(video) {
    const { stored } = this;
    this.uploading = true;
    this.renderStatus();
    try {
      const info = await retrying(() => /** @type {StoredFile} */ (stored).upload(), {});
      if (this.video === video) video.setInfo(info);
    } finally {
      this.uploading = false;
      this.renderStatus();
    }
  }

  /** @param {string} name @param {number} width @param {number} height @private */
  opened(name, width, height) {
    document.body.dataset.mode = this.video ? "video" : "image";
    find("#file-name").textContent = name;
    find("#file-size").textContent = `${width} × ${height}`;
    document.title = `${name} · vitruvian`;
    announce(`${name} is open.`);
  }

  /** @private */
  closeSource() {
    for (const run of this.runs.values()) {
      run.controller?.abort();
      for (const card of run.cards) card.close();
      Object.assign(run, { status: "idle", layer: null, error: null, controller: null, visible: false, cards: [] });
    }
    this.stored?.forget();
    this.image?.bitmap.close();
    this.video?.close();
    this.image = this.video = this.stored = null;
    this.answers.clear();
    this.asking = new Map(); // what was asked for is of no use any more
    this.prompts.clear();
    this.everyone = false;
    this.viewer.prompter = null;
    this.showSpace(false);
  }

  /** Close what is open, and show the start again. */
  close() {
    this.closeSource();
    document.body.dataset.mode = "empty";
    document.title = "vitruvian";
    this.viewer.setBase(null, 0, 0);
    this.refresh();
    find("#empty [data-action=choose]").focus();
  }

  // ------------------------------------------------------------------------------------------ tasks

  /** @param {string} task @returns {Run} */
  run(task) {
    return /** @type {Run} */ (this.runs.get(task));
  }

  /** Return the active task if it suits what is open, otherwise the first that does. @param {"images" | "jobs"} takes @private */
  usableTask(takes) {
    const suits = (/** @type {string} */ task) => this.models.get(task)?.[takes] && this.isListed(task);
    return [this.active, ...TASK_ORDER].find(suits) ?? "pose";
  }

  /** Show a task alone, and run it unless it has a result. @param {string} task */
  select(task) {
    this.active = task;
    for (const run of this.runs.values()) run.visible = run.task === task;
    this.showSpace(this.space && task === "pointmap");
    this.refresh();
    scrollWithin(find("#tasks"), find("#tasks [aria-current=true]"));
    this.showResult();
    if (this.image && this.canRun(task)) this.ensure(task);
  }

  /** Run a task that has not been, or that failed. @param {string} task @private */
  ensure(task) {
    if (["idle", "error"].includes(this.run(task).status)) this.execute(task);
  }

  /** Do once more what failed. @param {Run} run @private */
  retry(run) {
    if (run === this.promptRun && this.askMissing()) return;
    if (this.video) this.startVideoJob(run);
    else if (this.canRun(run.task)) this.execute(run.task);
  }

  /** Show or hide a task beside others. @param {string} task */
  toggleVisible(task) {
    const run = this.run(task);
    run.visible = !run.visible;
    if (run.visible) this.ensure(task);
    this.renderTasks();
    this.showLayers();
  }

  /** @param {string} task @returns {boolean} */
  canRun(task) {
    return Boolean(this.models.get(task)?.images) && task !== "segment";
  }

  /** Run a task on the image. @param {string} task */
  async execute(task) {
    const { stored } = this;
    const run = this.run(task);
    if (!this.image || !stored) return;
    run.controller?.abort();
    const controller = new AbortController();
    Object.assign(run, { status: "running", error: null, controller });
    this.renderTasks();
    this.renderStatus();
    const started = performance.now();
    try {
      const view = TASK_VIEWS[task];
      const onWait = (/** @type {number} */ seconds) => this.showWaiting(run, seconds);
      const options = { ...view.options, ...run.options, as: view.kind };
      const response = await stored.run(task, options, { signal: controller.signal, onWait });
      const layer = await view.read(response, this.layouts);
      if (controller.signal.aborted) return;
      if (layer instanceof MatteLayer) layer.backdrop = run.backdrop;
      Object.assign(run, { status: "done", layer, seconds: (performance.now() - started) / 1000 });
      announce(`${view.title}: ${foundNobody(run) ? "no people were found" : "done"}.`);
    } catch (error) {
      if (controller.signal.aborted) return;
      Object.assign(run, { status: "error", error });
    }
    this.renderTasks();
    this.renderStatus();
    if (task === this.active) this.renderResult();
    this.showLayers();
    if (this.space && task === "pointmap") this.showSpace(!foundNobody(run)); // with the new points
  }

  /** @param {Run} run @param {number} seconds @private */
  showWaiting(run, seconds) {
    Object.assign(run, { status: "waiting", seconds });
    this.renderTasks();
    this.renderStatus();
  }

  // ------------------------------------------------------------------------------------------ prompts

  /** The task that is prompted. @returns {Run} */
  get promptRun() {
    return this.run(this.video ? "track" : "segment");
  }

  /** @param {number[]} ids @private */
  promptsChanged(ids) {
    this.forgetError(this.promptRun);
    for (const id of ids) {
      if (!this.prompts.find(id)) this.answers.delete(this.promptKey(id));
      else if (this.models.has("segment")) this.ask(id);
    }
    this.showPrompts();
  }

  /** @param {number} id @param {number} [frame] @private */
  promptKey(id, frame = this.prompts.frame) {
    return `${frame}:${id}`;
  }

  /**
   * Ask for the mask of an object in a frame; changes in the meantime are asked for afterwards.
   * @param {number} id
   * @param {number} [frame]
   * @private
   */
  async ask(id, frame = this.prompts.frame) {
    const { asking, promptRun: run, stored } = this;
    const key = this.promptKey(id, frame);
    if (asking.has(key)) {
      asking.set(key, "again");
      return;
    }
    asking.set(key, "busy");
    this.renderTasks();
    const [answer, error] = await this.findMask(id, frame, run).then((found) => [found, null], (thrown) => [null, thrown]);
    if (stored !== this.stored) return; // of a file that was closed
    if (answer && this.prompts.find(id, frame)) this.answers.set(key, answer);
    if (error) Object.assign(run, { status: "error", error });
    else if (answer) run.status = jobStatus(run) ?? "done";
    const again = asking.get(key) === "again";
    asking.delete(key);
    if (again) this.ask(id, frame);
    this.showPrompts();
  }

  /**
   * Return the mask of an object in a frame; null if its prompts were removed.
   * @param {number} id
   * @param {number} frame
   * @param {Run} run
   * @returns {Promise<any>}
   * @private
   */
  async findMask(id, frame, run) {
    const object = this.prompts.find(id, frame);
    if (!object) return null;
    const stored = /** @type {StoredFile} */ (this.stored);
    const [what, options] = this.video ? ["prompts", trackPrompt(object)] : ["segment", promptOptions([object])];
    await stored.upload();
    const started = performance.now();
    const result = await (await stored.run(what, options)).json();
    run.seconds = (performance.now() - started) / 1000;
    return result.objects[0];
  }

  /** Ask for the masks of this frame that are missing. @returns {boolean} whether there are any @private */
  askMissing() {
    const { frame, objects } = this.prompts;
    const missing = objects.filter((object) => object.frame === frame && !this.answers.has(this.promptKey(object.id)));
    this.forgetError(this.promptRun);
    for (const { id } of missing) this.ask(id);
    return missing.length > 0;
  }

  /** @param {Run} run @private */
  forgetError(run) {
    if (run.error) Object.assign(run, { status: jobStatus(run) ?? "idle", error: null });
  }

  /** Draw prompts and masks, if they are seen. @private */
  showPrompts() {
    const { frame } = this.prompts;
    const run = this.promptRun;
    const shown = this.prompts.objects.filter((object) => object.frame === frame && this.answers.has(`${frame}:${object.id}`));
    const { width, height } = this.viewer.size;
    const answers = shown.map((object) => this.answers.get(`${frame}:${object.id}`));
    run.layer = answers.length ? new MaskLayer(answers, width, height, shown.map((object) => object.id)) : null;
    if (run.task !== this.active) return this.renderTasks();
    const details = new Map(shown.map((object, index) => [object.id, `score ${answers[index].score.toFixed(2)}`]));
    this.promptControls?.update(details);
    find("#stage").dataset.masks = String(answers.length);
    this.code?.update();
    this.updateStart?.();
    this.renderTasks();
    this.renderStatus();
    return this.showLayers();
  }

  // ------------------------------------------------------------------------------------------ video

  /** @private */
  frameChanged() {
    if (!this.video) return;
    if (this.prompts.frame !== this.video.frame) {
      this.prompts.frame = this.video.frame;
      if (this.prompts.objects.length) this.showPrompts();
    }
    this.showLayers();
  }

  /** Start a job with the video. @param {Run} run */
  async startVideoJob(run) {
    const stored = /** @type {StoredFile} */ (this.stored);
    const options = this.jobOptions(run);
    Object.assign(run, { status: "running", error: null });
    this.renderTasks();
    this.renderStatus();
    let error = null;
    try {
      const onWait = (/** @type {number} */ seconds) => this.showWaiting(run, seconds);
      const job = await (await stored.run(run.task, options, { onWait })).json();
      if (stored === this.stored) run.cards.unshift(this.jobCard(run, job));
    } catch (thrown) {
      error = /** @type {Error} */ (thrown);
    }
    if (stored === this.stored) this.jobsChanged(run, error);
  }

  /** @param {Run} run @param {any} job @returns {JobCard} @private */
  jobCard(run, job) {
    return new JobCard(job, { onEnd: (card) => this.jobEnded(run, card), onDelete: () => this.forgetJob(job.id) });
  }

  /** @param {Run} run @returns {Object<string, any>} @private */
  jobOptions({ options, task }) {
    if (task !== "track") return options;
    return this.everyone ? { ...options, everyone: true } : { ...options, prompts: this.prompts.objects.map(trackPrompt) };
  }

  /** @param {Run} run @param {JobCard} card @private */
  async jobEnded(run, card) {
    const { video } = this;
    const file = card.job.files.find((/** @type {any} */ one) => one.media_type.startsWith("video/"));
    try {
      if (file) card.video = await openResult(file.href);
    } catch {
      card.showError(new ApiError("This browser cannot show the result. Download it."));
    }
    if (card === run.cards[0]) run.seconds = (card.job.finished ?? 0) - (card.job.started ?? 0);
    if (video === this.video) this.jobsChanged(run);
  }

  /** Forget a job that was deleted. @param {string} id @private */
  forgetJob(id) {
    for (const run of this.runs.values()) {
      const card = run.cards.find((one) => one.job.id === id);
      if (!card) continue;
      run.cards = run.cards.filter((one) => one !== card);
      card.forget();
      this.jobsChanged(run);
    }
  }

  /** Show the jobs of a task as they are now. @param {Run} run @param {Error | null} error  of a job that did not start @private */
  jobsChanged(run, error = null) {
    Object.assign(run, { status: error ? "error" : jobStatus(run) ?? "idle", error });
    this.renderTasks();
    this.renderStatus();
    if (run.task !== this.active) return;
    this.renderJobs(run);
    this.showResult();
  }

  /** Show the newest result of the active task over the video. @private */
  showResult() {
    const { cards } = this.run(this.active);
    return this.video?.showResult(cards.find((card) => card.video)?.video ?? null);
  }

  // ------------------------------------------------------------------------------------------ 3D

  /** @param {boolean} on */
  async showSpace(on) {
    this.space = on;
    find("#space").hidden = !on;
    document.body.classList.toggle("in-space", on);
    const layer = this.run("pointmap").layer;
    if (!on || !(layer instanceof DepthLayer) || !this.image) return;
    try {
      this.orbit ??= await OrbitView.open(find("#space-view"));
    } catch {
      this.showSpace(false);
      this.showTrouble(new ApiError("This browser cannot show 3D.", { hint: "Enable WebGL, or download PLY or GLB." }));
      return;
    }
    const normals = this.run("normals").layer;
    const drawing = normals instanceof ColorLayer ? normals.image : null;
    this.orbit.show(layer.cloud, this.image.bitmap, drawing);
    this.renderSpaceTools();
  }

  /** @private */
  renderSpaceTools() {
    const { image } = this;
    const orbit = /** @type {OrbitView} */ (this.orbit);
    let chosen = "photo";
    const colors = choice({
      label: "Colors", value: "photo", values: [["photo", "Photo"], ["normals", "Normals"], ["depth", "Depth"]],
      onchange: async (value) => {
        chosen = value;
        if (value === "normals" && !orbit.normals) {
          await this.execute("normals");
          if (this.image !== image) return;
          const { layer, error } = this.run("normals");
          if (error) this.showTrouble(error);
          if (layer instanceof ColorLayer) orbit.setNormals(layer.image);
        }
        if (chosen === value) orbit.setColors(/** @type {any} */ (value));
      },
    });
    const lines = toggle({ label: "Normal lines", checked: false, onchange: (on) => orbit.showLines(on) });
    const reset = button({ icon: "fit", label: "Reset the 3D view", kind: "tool", onclick: () => orbit.reset() });
    find("#space-tools").replaceChildren(colors, lines, reset);
  }

  // ------------------------------------------------------------------------------------------ drawing the page

  /** Draw everything anew. */
  refresh() {
    this.renderTasks();
    this.renderPanel();
    this.showLayers();
  }

  /** Hand the visible layers to the viewer. */
  showLayers() {
    const layers = [];
    for (const task of Object.keys(TASK_VIEWS)) {
      const run = this.run(task);
      if (run.visible && run.layer) layers.push({ layer: run.layer, opacity: run.opacity });
    }
    const result = this.video?.layer(this.run(this.active).backdrop);
    if (result) layers.push({ layer: result, opacity: 1 });
    const prompting = this.active === "segment" ? Boolean(this.image) : this.active === "track" && Boolean(this.video) && !this.everyone;
    this.viewer.prompter = prompting && this.models.has(this.active) ? this.prompts : null;
    find("#stage").dataset.layers = layers.length ? String(layers.length) : "";
    find("#stage").classList.toggle("prompting", Boolean(this.viewer.prompter));
    this.viewer.setLayers(layers);
  }

  /** @private */
  renderTasks() {
    const focused = document.activeElement instanceof HTMLElement ? document.activeElement.dataset.focus : undefined;
    const groups = [["People", (/** @type {string} */ task) => PEOPLE_TASKS.has(task)], ["Anything", (/** @type {string} */ task) => !PEOPLE_TASKS.has(task)]];
    const rows = groups.map(([title, belongs]) => {
      const tasks = TASK_ORDER.filter((task) => /** @type {any} */ (belongs)(task) && this.isListed(task));
      return make("div.task-group", {}, make("h2", {}, /** @type {string} */ (title)), make("ul", {}, ...tasks.map((task) => this.taskRow(task))));
    });
    find("#tasks").replaceChildren(...rows);
    if (focused) /** @type {HTMLElement | null} */ (document.querySelector(`[data-focus="${focused}"]`))?.focus();
  }

  /** @param {string} task @returns {boolean} @private */
  isListed(task) {
    return this.video ? task !== "embed" && task !== "segment" : task !== "track";
  }

  /** @param {string} task @private */
  taskRow(task) {
    const run = this.run(task);
    const view = TASK_VIEWS[task];
    const served = this.models.has(task);
    const busy = run.status === "running" || run.status === "waiting" || (run === this.promptRun && this.asking.size > 0);
    const main = button({ icon: view.icon, text: view.title, kind: "task", onclick: () => this.select(task) });
    main.dataset.task = task;
    main.dataset.focus = `task-${task}`;
    main.dataset.status = busy && run.status !== "waiting" ? "running" : run.status;
    main.setAttribute("aria-current", String(task === this.active));
    const state = busy ? make("span.spinner", { role: "img", "aria-label": "working" }) : run.status === "error" ? icon("warning") : null;
    main.append(make("span.task-state", {}, state, !served && "no model"));
    if (!served) main.classList.add("unserved");
    const eye = button({ icon: run.visible ? "eye" : "eye-off", label: `Show ${view.title}`, kind: "tool", pressed: run.visible, onclick: () => this.toggleVisible(task) });
    eye.dataset.focus = `eye-${task}`;
    return make("li", {}, main, this.image && served && task !== "segment" ? eye : null);
  }

  /** @private */
  renderStatus() {
    const run = this.run(this.active);
    const box = document.querySelector("#status");
    if (!box) return;
    const working = this.workingText(run);
    if (working) box.replaceChildren(make("p.working", {}, make("span.spinner"), working));
    else if (run.error) box.replaceChildren(errorBox(run.error, () => this.retry(run)));
    else if (foundNobody(run)) box.replaceChildren(nobodyNote(this.models.get(run.task), run, (name, value) => this.setOption(run, name, value)));
    else if (run.status === "done" && run.seconds) box.replaceChildren(make("p.muted", {}, `Done in ${run.seconds < 1 ? `${Math.round(run.seconds * 1000)} ms` : `${run.seconds.toFixed(1)} s`}`));
    else box.replaceChildren();
  }

  /** @param {Run} run @returns {string} @private */
  workingText(run) {
    if (this.uploading) return "Uploading…";
    if (run.status === "waiting") return `The server is busy or loads its models. Trying again in ${Math.ceil(run.seconds)} s…`;
    return run.status === "running" && !run.cards.some((card) => !card.ended) ? "Working…" : "";
  }

  /** @private */
  renderPanel() {
    const panel = find("#panel");
    const { active } = this;
    const run = this.run(active);
    const model = this.models.get(active);
    const open = Boolean(this.image || this.video);
    this.promptControls = this.code = this.updateStart = null;
    const head = make("header.panel-head", {}, make("h2", {}, TASK_VIEWS[active].title), make("p.muted", {}, model?.summary ?? ""), model ? make("p.model", { title: model.model }, model.model.split("/").slice(-2).join("/")) : null);
    if (!model) {
      panel.replaceChildren(head);
      if (this.models.size) missingModel(active).then((note) => active === this.active && panel.replaceChildren(head, note));
      return;
    }
    const status = make("div", { id: "status", "aria-live": "polite" });
    const hidden = active === "pose" && this.image ? ["keypoint_threshold"] : []; // the page draws keypoints itself
    const options = open && optionControls(this.image ? model.options : model.job_options, run.options, hidden, () => this.optionsChanged(run));
    this.code = new CodeSection(() => this.call());
    panel.replaceChildren(head, status, make("div", { id: "controls" }), options || "", make("div", { id: "files" }), this.code.element);
    this.renderStatus();
    this.renderResult();
  }

  /** @param {Run} run @private */
  optionsChanged(run) {
    this.code?.update();
    if (this.image && run.task !== "segment") this.execute(run.task);
    if (this.video) this.renderResult();
  }

  /** Set an option from elsewhere than its form. @param {Run} run @param {string} name @param {string} value @private */
  setOption(run, name, value) {
    run.options[name] = value;
    this.renderPanel(); // with the option in its form
    this.optionsChanged(run);
  }

  /** Draw what depends on the result; the options stay as they are, with the focus. @private */
  renderResult() {
    const run = this.run(this.active);
    const model = this.models.get(run.task);
    if (!model || !document.querySelector("#controls")) return;
    if (this.image) {
      find("#controls").replaceChildren(...this.imageControls(run));
      const any = run.layer || run.task === "segment";
      const ask = (/** @type {string} */ kind) => this.askFor(run, kind);
      find("#files").replaceChildren(any ? downloads(model, this.image.file.name, ask, () => this.snapshot()) : "");
    } else if (this.video) {
      const cutsOut = run.task === "matte" || (run.task === "track" && run.options.cutout);
      const backdrop = cutsOut ? [backgroundControls(run, () => this.layerChanged())] : [];
      find("#controls").replaceChildren(...(run.task === "track" ? this.trackSections() : []), ...backdrop);
      find("#files").replaceChildren(this.jobSection(run));
      this.renderJobs(run);
    }
  }

  /** Return the image, or the view in 3D, as it is shown. @returns {Promise<Blob>} @private */
  snapshot() {
    return this.space && this.orbit ? this.orbit.snapshot() : this.viewer.snapshot();
  }

  /** @param {Run} run @returns {HTMLElement[]} @private */
  imageControls(run) {
    const parts = [];
    if (run.task === "segment") {
      this.promptControls = new PromptControls(this.prompts);
      parts.push(this.promptControls.element);
      this.showDetails();
    }
    if (run.task === "pointmap" && run.layer) parts.push(this.spaceButton());
    if ((run.layer && !this.space && !foundNobody(run)) || run.task === "segment") parts.push(...layerControls(run, () => this.layerChanged()));
    return parts;
  }

  /** @private */
  layerChanged() {
    this.showLayers();
    this.code?.update();
  }

  /** @private */
  showDetails() {
    const details = new Map([...this.answers].map(([key, one]) => [Number(key.split(":")[1]), `score ${one.score.toFixed(2)}`]));
    this.promptControls?.update(details);
  }

  /** @private */
  spaceButton() {
    const made = button({
      icon: "cube", text: this.space ? "Back to the image" : "Open in 3D", kind: "primary", id: "open-3d",
      disabled: foundNobody(this.run("pointmap")),
      onclick: async () => {
        await this.showSpace(!this.space);
        this.renderResult();
        find(this.space ? "#space-view canvas" : "#open-3d").focus();
      },
    });
    return section("3D", made);
  }

  /** @param {Run} run @returns {HTMLElement} @private */
  jobSection(run) {
    const text = run.task === "track" ? "Track" : "Run on the video";
    const start = button({ icon: "play", text, kind: "primary", id: "start-job", onclick: () => this.startVideoJob(run) });
    this.updateStart = () => {
      start.disabled = run.task === "track" && !this.everyone && !this.prompts.objects.length;
    };
    this.updateStart();
    return section("Video", start, make("div.task-jobs", { id: "task-jobs" }));
  }

  /** List the jobs of a task; a card that is listed already keeps the focus. @param {Run} run @private */
  renderJobs(run) {
    const list = find("#task-jobs");
    if (!run.cards.length) list.replaceChildren(make("p.muted", {}, "The result is a video and a file of data."));
    else if (list.querySelectorAll(".job").length !== run.cards.length) list.replaceChildren(...run.cards.map((card) => card.element));
  }

  /** @private */
  trackSections() {
    const everyone = toggle({
      label: "Follow everyone", checked: this.everyone,
      onchange: (on) => {
        this.everyone = on;
        this.renderResult();
        this.code?.update();
        this.showLayers();
        /** @type {HTMLElement | null} */ (document.querySelector("#everyone input"))?.focus();
      },
    });
    everyone.id = "everyone";
    if (this.everyone) return [section("Follow", everyone)];
    this.promptControls = new PromptControls(this.prompts);
    this.showDetails();
    return [section("Follow", everyone), this.promptControls.element];
  }

  /** Ask for files of a result. @param {Run} run @param {string} kind @returns {Promise<Response>[]} @private */
  askFor(run, kind) {
    const stored = /** @type {StoredFile} */ (this.stored);
    const requests = run.task === "segment" ? this.prompts.requests() : [{}];
    if (!requests.length) return [Promise.reject(new ApiError("There is nothing to download yet.", { hint: "Click on a thing first." }))];
    return requests.map((prompt) => stored.run(run.task, { ...run.options, ...prompt, as: kind }));
  }

  /** @returns {import("./code.js").Call} @private */
  call() {
    const run = this.run(this.active);
    const video = Boolean(this.video);
    const source = this.image?.file.name ?? this.video?.file.name ?? "photo.jpg";
    const options = { ...run.options, ...(run.task === "track" && this.everyone && { everyone: true }) };
    const prompts = run.task === "segment" ? this.prompts.requests() : [];
    const trackPrompts = run.task === "track" && !this.everyone ? this.prompts.objects.map(trackPrompt) : [];
    return { model: this.models.get(run.task), source, options, prompts, trackPrompts, video };
  }

  /** @param {Error | null} error @private */
  showTrouble(error) {
    const box = find("#trouble");
    box.hidden = !error;
    if (!error) return box.replaceChildren();
    const close = button({ icon: "close", label: "Close the message", kind: "tool", onclick: () => this.showTrouble(null) });
    return box.replaceChildren(errorBox(error), close);
  }

  // ------------------------------------------------------------------------------------------ buttons and keys

  /** @private */
  listen() {
    find("#zoom-in").addEventListener("click", () => this.viewer.zoom(1.25));
    find("#zoom-out").addEventListener("click", () => this.viewer.zoom(0.8));
    find("#fit").addEventListener("click", () => this.viewer.fit());
    find("#close").addEventListener("click", () => this.close());
    find("#theme").addEventListener("click", switchTheme);
    find("#show-jobs").addEventListener("click", () => this.showJobs());
    const compare = find("#compare");
    compare.addEventListener("click", () => {
      const on = compare.getAttribute("aria-pressed") !== "true";
      compare.setAttribute("aria-pressed", String(on));
      this.viewer.setCompare(on);
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLElement && event.target.matches("input:not([type=range]), select, textarea");
      if (typing || !(event.ctrlKey || event.metaKey) || event.key !== "z" || !this.viewer.prompter) return;
      event.preventDefault();
      this.prompts.undo();
    });
  }

  /** @private */
  async showJobs() {
    const dialog = /** @type {HTMLDialogElement} */ (find("#jobs"));
    const list = find("#job-list");
    list.replaceChildren(make("p.working", {}, make("span.spinner"), "Loading…"));
    dialog.showModal();
    try {
      const cards = (await listJobs()).slice(0, SHOWN_JOBS).map((job) => new JobCard(job, { follows: false, onDelete: (card) => this.forgetJob(card.job.id) }));
      const none = make("p.muted", {}, "There are no jobs. Open a video to start one.");
      list.replaceChildren(...(cards.length ? cards.map((card) => card.element) : [none]));
      // Asked for together: a browser has six connections to a server, and each stream of events would take one.
      while (dialog.open && cards.some((card) => !card.ended)) {
        await wait(FOLLOW_SECONDS);
        const jobs = new Map((await listJobs()).map((job) => [job.id, job]));
        for (const card of cards) if (!card.ended && jobs.has(card.job.id)) card.update(jobs.get(card.job.id));
      }
    } catch (error) {
      list.replaceChildren(errorBox(/** @type {Error} */ (error)));
    }
  }
}

/** @param {string} task @returns {Run} */
function newRun(task) {
  const opacity = TASK_VIEWS[task].opacity;
  return {
    task, status: "idle", layer: null, error: null, seconds: 0, visible: false, opacity, options: {}, controller: null,
    cards: [], backdrop: new Backdrop(),
  };
}

/** Return whether a task of people has a result without people. @param {Run} run @returns {boolean} */
function foundNobody({ task, layer }) {
  return PEOPLE_TASKS.has(task) && Boolean(layer?.isEmpty);
}

/** Return the status of a task by its newest job; null without a job. @param {Run} run @returns {Run["status"] | null} */
function jobStatus({ cards: [newest] }) {
  if (!newest) return null;
  if (!newest.ended) return "running";
  return newest.job.state === "failed" ? "error" : "done";
}

/** Switch between dark and light, and remember it. */
function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("vitruvian-theme", next);
  announce(`${next} colors`);
}

const theme = localStorage.getItem("vitruvian-theme");
if (theme) document.documentElement.dataset.theme = theme;
new Page().start();
