/** The inspector beside the image: what was computed, how it is shown, options, downloads and code. */

import { ApiError, request } from "./api.js";
import { commandLine, curl, python } from "./code.js";
import { objectColor } from "./colors.js";
import { announce, button, choice, colorSwatch, icon, make, saveFile, slider } from "./dom.js";
import { MatteLayer, PoseLayer, SIDES } from "./layers.js";
import { optionsForm, readFields } from "./options.js";
import { TASK_VIEWS } from "./tasks.js";

const KIND_NAMES = {
  json: "JSON", npz: "NPZ", png: "PNG", "16.png": "PNG 16-bit", jpg: "JPEG", jpeg: "JPEG", webp: "WebP", exr: "EXR",
  ply: "PLY", glb: "GLB", "mesh.glb": "GLB mesh", txt: "YOLO", "crops.zip": "Crops", "parts.zip": "Masks", plot: "Drawing", "plot.jpg": "Drawing JPEG",
};
const COLORS = [
  ["", "Transparent"], ["#ffffff", "White"], ["#111114", "Black"], ["#00b140", "Green"], ["#3457d5", "Blue"], ["#f4c7ab", "Peach"],
];

/**
 * Show an error where it happened.
 * @param {Error} error
 * @param {() => void} [retry]  what failed, once more
 * @returns {HTMLElement}
 */
export function errorBox(error, retry) {
  const hint = error instanceof ApiError ? error.hint : null;
  // The message ends with the hint; a hint that is a command has a line of its own.
  const command = hint?.match(/vitruvian serve .*/)?.[0].replace(/\.$/, "");
  const parts = [make("p", {}, error.message.replace(command ?? "\0", "").trim())];
  if (hint && !error.message.includes(hint)) parts.push(make("p", {}, hint));
  if (command) parts.push(copyBlock(command, "Copy the command"));
  if (retry) parts.push(button({ icon: "retry", text: "Try again", kind: "small", onclick: retry }));
  return make("div.error", { role: "alert" }, icon("warning"), make("div", {}, ...parts));
}

/**
 * Say that no people were found, and what can be done.
 * @param {any} model
 * @param {any} run
 * @param {(option: string, value: string) => void} setOption  and run again
 * @returns {HTMLElement}
 */
export function nobodyNote(model, run, setOption) {
  const has = (/** @type {string} */ name) => name in (model.options.properties ?? {});
  const wholeNow = run.options.on_empty ?? (TASK_VIEWS[run.task].onlyDetected ? "none" : "whole");
  const whole = has("on_empty") && wholeNow !== "whole";
  const hint = whole
    ? "A person may be too large or too small to be detected: process the whole image as one person."
    : "The whole image was processed too. Open an image in which a person is larger.";
  const actions = [
    whole && button({ text: "Process the whole image", kind: "small", onclick: () => setOption("on_empty", "whole") }),
    !whole && has("background") && run.options.background !== "keep" &&
      button({ text: "Keep the background", kind: "small", onclick: () => setOption("background", "keep") }),
  ];
  return make("div.note", {}, icon("info"), make("div", {}, make("p", {}, make("strong", {}, "No people were found.")), make("p", {}, hint), ...actions));
}

/** @param {string} text @param {string} label @returns {HTMLElement} */
export function copyBlock(text, label) {
  return make("div.code", {}, make("pre", { tabindex: 0, "aria-label": "Code" }, make("code", {}, ...words(text))), copyButton(() => text, label));
}

/** Return a text whose short words are not broken at hyphens. @param {string} text @returns {(HTMLElement | string)[]} */
function words(text) {
  return text.split(/(\s+)/).map((word) => (word.trim() && word.length < 34 ? make("span.word", {}, word) : word));
}

/** @param {() => string} text @param {string} label */
function copyButton(text, label) {
  const made = button({
    icon: "copy", label, kind: "copy",
    onclick: async () => {
      await copyText(text());
      made.replaceChildren(icon("check"));
      announce("Copied.");
      setTimeout(() => made.replaceChildren(icon("copy")), 1500);
    },
  });
  return made;
}

/** Copy a text; pages without HTTPS have no clipboard, but can select. @param {string} text */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = /** @type {HTMLTextAreaElement} */ (make("textarea", { "aria-hidden": "true" }));
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  return area.remove();
}

/**
 * A heading and what belongs to it.
 * @param {string} title
 * @param {...(HTMLElement | null | false)} children
 */
export function section(title, ...children) {
  return make("section.section", {}, make("h3", {}, title), ...children);
}

/**
 * The list of a layer's items, with a switch each.
 * @param {import("./layers.js").Layer} layer
 * @param {string} title
 * @param {() => void} onChange
 */
export function itemList(layer, title, onChange) {
  const items = layer.items ?? [];
  const update = () => {
    layer.refresh?.();
    onChange();
  };
  const rows = items.map((item) => {
    const input = /** @type {HTMLInputElement} */ (make("input", { type: "checkbox", role: "switch", checked: item.on }));
    input.addEventListener("change", () => {
      item.on = input.checked;
      update();
    });
    const swatch = item.color && colorSwatch(item.color);
    return make("li", {}, make("label.toggle", {}, make("span.item-name", {}, swatch, item.name), make("span.muted", {}, item.detail), input));
  });
  const setAll = (/** @type {boolean} */ on) => () => {
    items.forEach((item, index) => {
      item.on = on;
      /** @type {HTMLInputElement} */ (rows[index].querySelector("input")).checked = on;
    });
    update();
  };
  const actions = make("div.row", {},
    button({ text: "All", kind: "small", label: `All ${title.toLowerCase()}`, onclick: setAll(true) }),
    button({ text: "None", kind: "small", label: `None of the ${title.toLowerCase()}`, onclick: setAll(false) }),
  );
  const head = make("div.section-head", {}, make("h3", {}, `${title} `, make("span.count", {}, String(items.length))), items.length > 1 ? actions : null);
  return make("section.section", {}, head, items.length ? make("ul.items", {}, ...rows) : make("p.muted", {}, "Nothing was found."));
}

/**
 * Backgrounds of people that are cut out; of a matte, a color is an option of drawings, videos and the code too.
 * @param {any} run
 * @param {() => void} onChange
 */
export function backgroundControls({ task, backdrop, options }, onChange) {
  const swatches = COLORS.map(([color, name]) => {
    const one = button({ label: name, kind: "color", pressed: (backdrop.fill ?? "") === color, onclick: () => choose(color || null, one) });
    if (color) one.style.background = color;
    return one;
  });
  const custom = /** @type {HTMLInputElement} */ (make("input", { type: "color", value: "#7c5cff", "aria-label": "Another color" }));
  custom.addEventListener("input", () => choose(custom.value, null));
  const file = /** @type {HTMLInputElement} */ (make("input", { type: "file", accept: "image/*", hidden: true, id: "background-file", "aria-label": "Image behind people", tabindex: -1 }));
  file.addEventListener("change", async () => {
    if (file.files?.[0]) choose(await createImageBitmap(file.files[0]), null);
  });
  const choose = (/** @type {string | ImageBitmap | null} */ value, /** @type {HTMLElement | null} */ pressed) => {
    backdrop.fill = value;
    delete options.over;
    if (typeof value === "string" && task === "matte") options.over = value;
    for (const one of swatches) one.setAttribute("aria-pressed", String(one === pressed));
    onChange();
  };
  const image = button({ icon: "image", text: "Image…", kind: "small", onclick: () => file.click() });
  return section("Background", make("div.colors", {}, ...swatches, custom), make("div.row", {}, image, file));
}

/** What the colors of keypoints mean. @returns {HTMLElement} */
function sideLegend() {
  return make("ul.legend", {}, ...SIDES.map(({ name, color }) => make("li", {}, colorSwatch(color), name)));
}

/**
 * What is special about how a layer is shown.
 * @param {any} run
 * @param {() => void} onChange
 * @returns {HTMLElement[]}
 */
export function layerControls(run, onChange) {
  const { layer, task } = run;
  const parts = [
    section("View", slider({
      label: "Opacity", value: run.opacity,
      onchange: (value) => {
        run.opacity = value;
        onChange();
      },
    }), layer instanceof PoseLayer && slider({
      label: "Lowest score", value: layer.threshold, max: 0.95, step: 0.05, show: (value) => value.toFixed(2),
      onchange: (value) => {
        layer.threshold = value;
        onChange();
      },
    }), layer instanceof PoseLayer && sideLegend()),
  ];
  if (layer instanceof MatteLayer) parts.push(backgroundControls(run, onChange));
  else if (layer?.items && task !== "segment") {
    const titles = { pose: "People", parts: "Parts", semantic: "Classes", panoptic: "Segments", instances: "Objects", masks: "Masks" };
    parts.push(itemList(layer, titles[/** @type {keyof titles} */ (task)], onChange));
  }
  return parts;
}

/**
 * Options of the model.
 * @param {any} schema
 * @param {Object<string, any>} values
 * @param {string[]} hidden
 * @param {() => void} onChange
 * @returns {HTMLElement | null}
 */
export function optionControls(schema, values, hidden, onChange) {
  const fields = readFields(schema, hidden);
  if (!fields.length) return null;
  return make("details.section", {}, make("summary", {}, "Options"), optionsForm(fields, values, onChange));
}

/**
 * Files of a result.
 * @param {any} model
 * @param {string} source  name of the image
 * @param {(kind: string) => Promise<Response>[]} ask  one answer for each file
 * @param {() => Promise<Blob>} snapshot  the image, or the view in 3D, as it is shown
 */
export function downloads(model, source, ask, snapshot) {
  const stem = source.replace(/\.[^.]*$/, "") || "image";
  const trouble = make("div");
  const copies = ["jpeg", ...(TASK_VIEWS[model.task].copies ?? [])];
  const kinds = model.kinds.filter((/** @type {string} */ kind) => !copies.includes(kind));
  const chips = kinds.map((/** @type {string} */ kind) => {
    const named = kind === "plot.jpg" && copies.includes("plot") ? "jpg" : kind;
    const name = KIND_NAMES[/** @type {keyof KIND_NAMES} */ (named)] ?? kind;
    const chip = button({
      text: name, label: `Download ${name}`, kind: "chip",
      onclick: async () => {
        chip.setAttribute("aria-busy", "true");
        trouble.replaceChildren();
        try {
          const answers = await Promise.all(ask(kind));
          for (const [index, answer] of answers.entries()) {
            const number = answers.length > 1 ? `_${index + 1}` : "";
            saveFile(await answer.blob(), `${stem}_${model.task}${number}${ending(kind)}`);
          }
        } catch (error) {
          trouble.replaceChildren(errorBox(/** @type {Error} */ (error)));
        } finally {
          chip.removeAttribute("aria-busy");
        }
      },
    });
    chip.dataset.kind = kind;
    return chip;
  });
  const shown = button({
    text: "As shown", label: "Download the image as shown", kind: "chip",
    onclick: async () => saveFile(await snapshot(), `${stem}_view.png`),
  });
  return section("Download", make("div.chips", {}, ...chips, shown), trouble);
}

/** @param {string} kind @returns {string} */
function ending(kind) {
  return { plot: "_plot.png", "plot.jpg": "_plot.jpg" }[kind] ?? `.${kind}`;
}

/** Code that does the same, in three languages. */
export class CodeSection {
  /** @param {() => import("./code.js").Call} call */
  constructor(call) {
    this.call = call;
    this.language = "shell";
    this.text = make("code");
    const tabs = choice({
      label: "Language", value: this.language, values: [["shell", "Command line"], ["python", "Python"], ["curl", "curl"]],
      onchange: (value) => {
        this.language = value;
        this.update();
      },
    });
    const pre = make("pre", { tabindex: 0, "aria-label": "Code", id: "code" }, this.text);
    this.element = section("The same in code", tabs, make("div.code", {}, pre, copyButton(() => this.text.textContent ?? "", "Copy the code")));
    this.update();
  }

  /** Write it anew. */
  update() {
    const write = { shell: commandLine, python, curl }[this.language] ?? commandLine;
    this.text.replaceChildren(...words(write(this.call())));
  }
}

/**
 * Why a task cannot be used here, and how to start the server with a model for it.
 * @param {string} task
 * @returns {Promise<HTMLElement>}
 */
export async function missingModel(task) {
  try {
    if (task === "track") await request("v1/jobs", { method: "POST", query: { task } });
    else await request(`v1/${task}`, { method: "POST" });
  } catch (error) {
    const command = (error instanceof ApiError && error.hint?.match(/vitruvian serve .*/)?.[0]) || "vitruvian serve --help";
    const title = TASK_VIEWS[task].title;
    return make("div.note", {}, icon("info"), make("div", {},
      make("p", {}, `${title} needs a model that this server does not have. Start it with one:`),
      copyBlock(command.replace(/\.$/, ""), "Copy the command")));
  }
  return make("div");
}

/** The tools for points and boxes, and the list of objects. */
export class PromptControls {
  /** @param {import("./prompts.js").Prompts} prompts */
  constructor(prompts) {
    this.prompts = prompts;
    const tools = choice({
      label: "Tool", value: prompts.tool, values: [["point", "Add"], ["remove", "Remove"], ["box", "Box"]],
      onchange: (value) => {
        prompts.tool = /** @type {any} */ (value);
      },
    });
    this.undo = button({ icon: "undo", text: "Undo", kind: "small", onclick: () => prompts.undo() });
    const add = button({ icon: "plus", text: "New object", kind: "small", onclick: () => prompts.addObject() });
    this.list = make("ul.items.objects");
    const hint = "Click on a thing. Remove, or a right click, takes a part away. On the keyboard: arrow keys and Enter on the image.";
    this.element = section("Objects", tools, make("p.muted.hint", {}, hint), this.list, make("div.row", {}, add, this.undo));
    this.update(new Map());
  }

  /** @param {Map<number, string>} details  of each object */
  update(details) {
    const { prompts } = this;
    const ids = [...new Set([...prompts.objects.map((object) => object.id), prompts.active])].sort((a, b) => a - b);
    const rows = ids.map((id) => {
      const own = prompts.objects.filter((object) => object.id === id);
      const points = own.reduce((sum, object) => sum + object.points.length, 0);
      const boxes = own.filter((object) => object.box).length;
      const words = [points && `${points} point${points > 1 ? "s" : ""}`, boxes && `${boxes > 1 ? boxes : "a"} box${boxes > 1 ? "es" : ""}`, details.get(id)];
      const select = button({ text: `Object ${id}`, kind: "object", pressed: id === prompts.active, onclick: () => prompts.select(id) });
      select.prepend(objectSwatch(id));
      select.append(make("span.muted", {}, words.filter(Boolean).join(" · ") || "no prompt yet"));
      const remove = button({ icon: "trash", label: `Remove object ${id}`, kind: "tool", disabled: !own.length, onclick: () => {
        prompts.remove(id);
        this.undo.focus();
      } });
      return make("li.row", {}, select, remove);
    });
    this.list.replaceChildren(...rows);
    this.undo.disabled = !prompts.history.length;
  }
}

/** @param {number} id @returns {HTMLElement} */
function objectSwatch(id) {
  const swatch = colorSwatch(objectColor(id - 1));
  swatch.classList.add("round");
  return swatch;
}
