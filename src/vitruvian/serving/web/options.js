/** A form for the options of a task, made from their JSON schema. */

import { make, readable, slider, toggle } from "./dom.js";

// Options of the drawing that the page makes itself, and those that other parts of the page set.
const HIDDEN = new Set([
  "opacity", "legend", "outline", "draw_boxes", "over", "with_score", "points", "labels", "boxes",
  "box_format", "all_masks", "prompts", "everyone", "save", "mesh", "max_points", "intrinsics", "tile", "fuse",
]);

/**
 * @typedef {{name: string, type: string, values?: string[], optional: boolean, default: any, min?: number, max?: number,
 *            help: string}} Field
 */

/**
 * Return the options that a form can show.
 * @param {any} schema
 * @param {string[]} hidden  further options to leave out
 * @returns {Field[]}
 */
export function readFields(schema, hidden = []) {
  const fields = [];
  for (const [name, raw] of Object.entries(schema.properties ?? {})) {
    if (HIDDEN.has(name) || hidden.includes(name)) continue;
    const choices = raw.anyOf ?? [raw];
    const one = choices.find((/** @type {any} */ choice) => choice.type !== "null");
    const type = one.enum ? "enum" : one.type;
    if (!["enum", "boolean", "integer", "number"].includes(type)) continue;
    fields.push({
      name, type,
      values: one.enum,
      optional: choices.length > 1,
      default: raw.default ?? null,
      min: one.minimum ?? one.exclusiveMinimum,
      max: one.maximum ?? one.exclusiveMaximum,
      help: raw.description ?? "",
    });
  }
  return fields;
}

/**
 * Make the form.
 * @param {Field[]} fields
 * @param {Object<string, any>} values  that are not at their defaults; changed in place
 * @param {() => void} onChange
 * @returns {HTMLElement}
 */
export function optionsForm(fields, values, onChange) {
  const set = (/** @type {Field} */ field, /** @type {any} */ value) => {
    if (value === field.default || value === "") delete values[field.name];
    else values[field.name] = value;
    onChange();
  };
  return make("div.options", {}, ...fields.map((field) => fieldControl(field, values[field.name] ?? field.default, (v) => set(field, v))));
}

/** @param {Field} field @param {any} value @param {(value: any) => void} onChange @returns {HTMLElement} */
function fieldControl(field, value, onChange) {
  const label = readable(field.name);
  if (field.type === "boolean") {
    const control = toggle({ label, checked: Boolean(value), onchange: onChange });
    control.title = field.help;
    return control;
  }
  if (field.type === "enum") {
    const options = (field.values ?? []).map((one) => make("option", { value: one, selected: one === value }, one));
    if (field.optional) options.unshift(make("option", { value: "", selected: value === null }, "default"));
    const select = /** @type {HTMLSelectElement} */ (make("select", {}, ...options));
    select.addEventListener("change", () => onChange(select.value));
    return make("label.line", { title: field.help }, make("span", {}, label), select);
  }
  if (field.type === "number" && field.min === 0 && field.max !== undefined && field.max <= 1) {
    const control = slider({
      label, value: Number(value), max: field.max, step: 0.05, show: (one) => one.toFixed(2),
      onchange: () => undefined,
    });
    control.title = field.help;
    const input = /** @type {HTMLInputElement} */ (control.querySelector("input"));
    input.addEventListener("change", () => onChange(Number(input.value)));
    return control;
  }
  const input = /** @type {HTMLInputElement} */ (
    make("input", {
      type: "number", min: field.min, max: field.max, step: field.type === "integer" ? 1 : "any",
      value: value ?? "", placeholder: "default",
    })
  );
  input.addEventListener("change", () => onChange(input.value === "" ? "" : Number(input.value)));
  return make("label.line", { title: field.help }, make("span", {}, label), input);
}
