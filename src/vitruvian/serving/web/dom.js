/** Building and finding elements. Texts are always text nodes, never HTML. */

const SVG = "http://www.w3.org/2000/svg";

/**
 * Find an element of the page that must be there.
 * @param {string} selector
 * @param {ParentNode} root
 * @returns {HTMLElement}
 */
export function find(selector, root = document) {
  const found = root.querySelector(selector);
  if (!found) throw new Error(`no element ${selector}`);
  return /** @type {HTMLElement} */ (found);
}

/**
 * Make an element.
 * @param {string} tag  "div", or with classes "div.row.wide"
 * @param {Object<string, any>} attributes  "onclick" and the like are listeners; true and false are boolean attributes
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function make(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * Make an icon of the sprite `icons.svg`.
 * @param {string} name
 * @returns {SVGElement}
 */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `web/icons.svg#${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

/**
 * Make a button with an icon, a text, or both.
 * @param {{icon?: string, text?: string, label?: string, kind?: string, pressed?: boolean, disabled?: boolean,
 *          onclick: (event: Event) => void, id?: string}} options  `label` is read aloud where there is no text
 * @returns {HTMLButtonElement}
 */
export function button({ icon: name, text, label, kind = "", pressed, disabled, onclick, id }) {
  /** @type {Object<string, any>} */
  const attributes = { type: "button", id, title: text ? undefined : label, "aria-label": label, disabled, onclick };
  if (pressed !== undefined) attributes["aria-pressed"] = String(pressed);
  const made = make(`button.button${kind ? `.${kind}` : ""}`, attributes, name ? icon(name) : null, text ?? null);
  return /** @type {HTMLButtonElement} */ (made);
}

/**
 * Make a slider with its name and value above it.
 * @param {{label: string, value: number, min?: number, max?: number, step?: number,
 *          show?: (value: number) => string, onchange: (value: number) => void}} options
 * @returns {HTMLElement}
 */
export function slider({ label, value, min = 0, max = 1, step = 0.01, show = percent, onchange }) {
  const output = make("output", {}, show(value));
  const input = make("input", { type: "range", min, max, step, value, "aria-label": label });
  const range = /** @type {HTMLInputElement} */ (input);
  range.addEventListener("input", () => {
    output.textContent = show(Number(range.value));
    onchange(Number(range.value));
  });
  return make("label.field", {}, make("span.field-name", {}, label, output), input);
}

/**
 * Make a switch.
 * @param {{label: string, checked: boolean, onchange: (checked: boolean) => void}} options
 * @returns {HTMLElement}
 */
export function toggle({ label, checked, onchange }) {
  const input = /** @type {HTMLInputElement} */ (make("input", { type: "checkbox", role: "switch", checked }));
  input.addEventListener("change", () => onchange(input.checked));
  return make("label.toggle", {}, make("span", {}, label), input);
}

/**
 * Make a group of buttons of which one is chosen.
 * @param {{label: string, values: [string, string][], value: string, onchange: (value: string) => void}} options
 * @returns {HTMLElement}
 */
export function choice({ label, values, value, onchange }) {
  const buttons = values.map(([key, text]) => {
    const one = button({
      text,
      kind: "segment",
      pressed: key === value,
      onclick: () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === one));
        onchange(key);
      },
    });
    one.dataset.value = key;
    return one;
  });
  return make("div.segments", { role: "group", "aria-label": label }, ...buttons);
}

/** Make a small square of a color. @param {[number, number, number]} rgb @returns {HTMLElement} */
export function colorSwatch(rgb) {
  const swatch = make("span.swatch");
  swatch.style.background = `rgb(${rgb.join(" ")})`;
  return swatch;
}

/** @param {number} value @returns {string} */
export function percent(value) {
  return `${Math.round(value * 100)} %`;
}

/** @param {number} bytes @returns {string} */
export function fileSize(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1e6) return `${Math.round(bytes / 1000)} kB`;
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** @param {string} name @returns {string} */
export function readable(name) {
  const text = name.replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/**
 * Scroll a bar so that one of its elements is in its middle, but not the page.
 * @param {HTMLElement} bar
 * @param {HTMLElement} element
 */
export function scrollWithin(bar, element) {
  const [outer, inner] = [bar.getBoundingClientRect(), element.getBoundingClientRect()];
  bar.scrollLeft += inner.left + inner.width / 2 - (outer.left + outer.width / 2);
}

/** Tell people who listen to the page rather than see it. @param {string} text */
export function announce(text) {
  find("#announcer").textContent = text;
}

/**
 * Save a file.
 * @param {Blob} blob
 * @param {string} name
 */
export function saveFile(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = /** @type {HTMLAnchorElement} */ (make("a", { href: url, download: name }));
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
