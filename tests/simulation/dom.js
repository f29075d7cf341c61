// As much of a browser as the page's script asks for: it runs, and says what it drew.
"use strict";
const fs = require("fs");
const html = fs.readFileSync(process.argv[2], "utf8");
const script = html.match(/<script>\n([\s\S]*?)<\/script>/)[1];
const data = html.match(/<script id="data"[^>]*>([\s\S]*?)<\/script>/)[1];
const bars = [];
const pen = new Proxy({}, {
  get: (target, name) => name === "fillRect"
    ? (x, y, width, height) => bars.push([target.fillStyle, x, y, width, height])
    : name in target ? target[name] : () => {},
  set: (target, name, value) => { target[name] = value; return true; },
});
const all = [];
class Element {
  constructor(name) { Object.assign(this, { name, children: [], style: {}, listeners: {}, text: "", attributes: {}, clientWidth: 1008, offsetWidth: 10, offsetHeight: 10 }); all.push(this); }
  get clientHeight() { return parseInt(this.style.height || "0", 10); }
  set textContent(text) { this.text = text; }
  get textContent() { return this.text; }
  append(...parts) { for (const part of parts) { if (typeof part === "string") this.text += part; else this.children.push(part); } }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  querySelector(name) { return this.children.find((child) => child.name === name) || null; }
  getContext() { return pen; }
  setPointerCapture() {}
}
const named = {};
const byId = (id) => (named[id] ||= Object.assign(new Element(id), id === "data" ? { text: data } : {}));
globalThis.document = { getElementById: byId, createElement: (name) => new Element(name), documentElement: {} };
globalThis.window = { addEventListener() {}, devicePixelRatio: 1, innerWidth: 1000, innerHeight: 800 };
globalThis.getComputedStyle = () => ({ getPropertyValue: (name) => name });
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.requestAnimationFrame = (call) => call();
new Function(script)();
const first = bars.splice(0);
const canvases = all.filter((element) => element.name === "canvas");
const press = (key) => canvases[0].listeners.keydown({ key, preventDefault() {} });
for (const key of ["ArrowDown", "ArrowDown", "+", "ArrowRight", "-", "0", "Home"]) press(key);
const said = all.find((element) => element.className === "said").text;
canvases[0].listeners.pointermove({ offsetX: 10, offsetY: 20, clientX: 10, clientY: 20 });
const tip = byId("tip").text;
canvases[1].listeners.pointermove({ offsetX: 500, offsetY: 20, clientX: 10, clientY: 20 });
for (const details of all.filter((element) => element.name === "details")) details.listeners.toggle();
const cells = all.filter((element) => element.name === "td").map((element) => element.text);
console.log(JSON.stringify({ first, said, tip, chart: byId("tip").text, cells, labels: canvases.map((c) => c.attributes["aria-label"]) }));
