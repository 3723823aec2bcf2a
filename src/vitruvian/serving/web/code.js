/** The command line, the Python and the curl call that do what the page does. */

import { apiKey } from "./api.js";
import { TASK_VIEWS } from "./tasks.js";

/**
 * @typedef {Object} Call
 * @property {any} model  of /v1/models
 * @property {string} source  name of the file
 * @property {Object<string, any>} options  that are not at their defaults
 * @property {any[]} prompts  options with points and boxes, one for each call
 * @property {any[]} [trackPrompts]  of `track`
 * @property {boolean} [video]
 */

/** Quote a word for a shell. @param {string} text @returns {string} */
function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** @param {string} name @returns {string} */
function stem(name) {
  return name.replace(/\.[^.]*$/, "") || name;
}

/** @param {Call} call @returns {string} */
export function commandLine({ model, source, options, prompts, trackPrompts, video }) {
  const start = ["vitruvian", model.task, quoted(source.startsWith("-") ? `./${source}` : source), "--model", quoted(model.model)];
  for (const [name, value] of Object.entries(options)) start.push(...optionWords(name, value));
  if (options.over && !video) start.push("--save", "png,plot"); // only the drawing is over the color
  for (const prompt of trackPrompts ?? []) start.push(...trackWords(prompt));
  const calls = prompts.length ? prompts : [{}];
  const folder = (/** @type {number} */ index) => (calls.length > 1 ? ["--out", `out/${index + 1}`] : []); // each has its own
  return calls.map((prompt, index) => [...start, ...promptWords(prompt), ...folder(index)].join(" ")).join("\n");
}

/** @param {string} name @param {any} value @returns {string[]} */
function optionWords(name, value) {
  const option = name.replaceAll("_", "-");
  if (value === true) return [`--${option}`];
  if (value === false) return [`--no-${option}`];
  return [`--${option}`, quoted(Array.isArray(value) ? value.join(",") : String(value))];
}

/** @param {any} prompt @returns {string[]} */
function promptWords({ points = [], labels = [], boxes = [] }) {
  return [
    ...points.flatMap((/** @type {number[][]} */ rows, /** @type {number} */ i) => ["--points", quoted(pointText(rows, labels[i]))]),
    ...boxes.flatMap((/** @type {number[]} */ box) => ["--boxes", box.join(",")]),
  ];
}

/** @param {number[][]} points @param {number[]} labels @returns {string} */
function pointText(points, labels) {
  return points.map(([x, y], i) => (labels[i] ? `${x},${y}` : `${x},${y},0`)).join(" ");
}

/** @param {any} prompt @returns {string[]} */
function trackWords({ object_id: id, frame, points, labels, box }) {
  const where = `${id}@${frame}:`;
  return [
    ...(box ? ["--box", where + box.join(",")] : []),
    ...(points ? ["--points", quoted(where + pointText(points, labels))] : []),
  ];
}

/** @param {Call} call @returns {string} */
export function python(call) {
  const { model, source, prompts } = call;
  if (model.task === "track") return trackPython(call);
  const options = pythonOptions(call);
  const lines = ["from vitruvian import pipeline", "", `${model.task} = pipeline(${text(model.task)}, ${text(model.model)})`];
  if (call.video) {
    const given = [text(source), ...keywords(options)].join(", ");
    return [...lines, `for result in ${model.task}(${given}):`, "    print(result.frame, result)"].join("\n");
  }
  const calls = prompts.length ? prompts : [{}];
  calls.forEach((prompt, index) => {
    const given = [text(source), ...keywords({ ...options, ...prompt })].join(", ");
    lines.push(`result = ${model.task}(${given})`);
    if (call.options.layout) lines.push(`result = result.to_layout(${text(call.options.layout)})`);
    if (call.options.over) lines.push(`over = result.over(${text(call.options.over)})  # uint8 [H, W, 3]`);
    const number = calls.length > 1 ? `_${index + 1}` : "";
    lines.push(`result.save(${text(`${stem(source)}_${model.task}${number}.${TASK_VIEWS[model.task].save}`)})`);
  });
  return lines.join("\n");
}

/** Return the arguments of the pipeline. @param {Pick<Call, "model" | "options">} call @returns {Object<string, any>} */
function pythonOptions({ model, options }) {
  /** @type {Object<string, any>} */
  const found = {};
  for (const [name, value] of Object.entries(options)) {
    if (name in model.arguments) found[model.arguments[name]] = value;
  }
  return found;
}

/** @param {Call} call @returns {string} */
function trackPython({ model, source, options, trackPrompts = [] }) {
  const everyone = Boolean(options.everyone);
  const lines = [`from vitruvian import ${everyone ? "" : "TrackPrompt, "}pipeline`, ""];
  lines.push(`track = pipeline("track", ${text(model.model)})`);
  if (!everyone) {
    const prompts = trackPrompts.map((prompt) => `    TrackPrompt(${keywords(prompt).join(", ")}),`);
    lines.push("prompts = [", ...prompts, "]");
  }
  const given = [text(source), everyone ? 'detect="builtin"' : "prompts=prompts", ...keywords(pythonOptions({ model, options }))];
  return [...lines, `for result in track(${given.join(", ")}):`, "    print(result.frame, result.object_ids)"].join("\n");
}

/** @param {Object<string, any>} options @returns {string[]} */
function keywords(options) {
  return Object.entries(options).map(([name, value]) => `${name}=${text(value)}`);
}

/** Write a value as Python does. @param {any} value @returns {string} */
function text(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map(text).join(", ")}]`;
  return JSON.stringify(value);
}

/** @param {Call} call @returns {string} */
export function curl({ model, source, options, prompts, trackPrompts, video }) {
  const base = document.baseURI.replace(/\/[^/]*$/, "");
  const all = { ...options, ...(trackPrompts?.length && { prompts: trackPrompts }) };
  const calls = prompts.length ? prompts : [{}];
  return calls
    .map((prompt) => {
      const query = Object.entries({ ...all, ...prompt }).map(
        ([name, value]) => `${name}=${encodeURIComponent(typeof value === "object" ? JSON.stringify(value) : value)}`,
      );
      if (video) query.unshift(`task=${model.task}`, `name=${encodeURIComponent(source)}`);
      const address = `${base}/v1/${video ? "jobs" : model.task}${query.length ? `?${query.join("&")}` : ""}`;
      const key = apiKey() ? '-H "Authorization: Bearer $VITRUVIAN_API_KEY" ' : ""; // the key itself is not shown
      return `curl ${key}--data-binary ${quoted(`@${source}`)} ${quoted(address)}`;
    })
    .join("\n");
}
