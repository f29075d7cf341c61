"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (name, text, parent) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const KINDS = ["prefill", "decode", "recompute"];
  const LEGEND = [
    ["waiting", "waits"], ["prefill", "prompt computed"], ["decode", "tokens generated"],
    ["held", "holds a seat, not in this step"], ["preempted", "preempted, waits again"],
    ["recompute", "lost positions computed again"], ["used", "KV blocks held"], ["queue", "requests waiting"],
  ];
  const END = Math.max(1e-6, ...data.runs.map((run) => run.end));
  const CHART = 90, AXIS = 18, LEFT = 4;
  const view = { from: 0, to: END };
  const seconds = (t) => `${t.toFixed(t < 10 ? 3 : 2)} s`;
  let colours = {};
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "faint", "line", ...LEGEND.map((entry) => entry[0])])
      colours[name] = style.getPropertyValue(`--${name}`).trim();
  };

  const showFigures = () => {
    for (const fact of data.facts) make("li", fact, byId("facts"));
    const head = make("tr", undefined, make("thead", undefined, byId("figures")));
    make("th", "", head).scope = "col";
    for (const run of data.runs) make("th", run.name, head).scope = "col";
    const body = make("tbody", undefined, byId("figures"));
    for (const [label, ...cells] of data.table) {
      const row = make("tr", undefined, body);
      make("th", label, row).scope = "row";
      for (const cell of cells) make("td", cell, row);
    }
    for (const [name, meaning] of LEGEND) {
      const item = make("li", undefined, byId("legend"));
      make("span", undefined, item).style.background = `var(--${name})`;
      item.append(meaning);
    }
  };

  // A row: [name, tenant, arrival, started, ended, reason, prompt, output, segments, preemptions]
  const describe = (row) => {
    const [name, tenant, arrival, started, ended, reason, prompt, output, , preemptions] = row;
    const lines = [`request ${name} of ${tenant}: ${prompt} prompt tokens, ${output} generated`,
      `arrived ${seconds(arrival)}, ${started === null ? "never started" : `started ${seconds(started)}`}, ` +
      `ended ${seconds(ended)} (${reason})`];
    for (const [time, how, by] of preemptions) lines.push(`preempted ${seconds(time)} (${how}) for ${by}`);
    return lines.join("\n");
  };
  const stateAt = (row, time) => {
    const [, , arrival, started, ended, , , , segments, preemptions] = row;
    if (time < arrival || time > ended) return "";
    for (const [kind, begin, end, tokens, steps] of segments)
      if (begin <= time && time < end) return `${KINDS[kind]}: ${tokens} tokens in ${steps} steps, ${seconds(begin)} to ${seconds(end)}`;
    if (started === null || time < started) return "waits";
    return preemptions.some(([when]) => when <= time && !segments.some(([, begin]) => begin >= when && begin <= time))
      ? "preempted, waits again" : "holds a seat, not in this step";
  };

  class Picture {
    constructor(run, parent) {
      this.run = run;
      this.chosen = -1;
      make("h3", run.name, parent);
      this.rowHeight = Math.max(3, Math.min(14, Math.floor(700 / Math.max(run.rows.length, 1))));
      this.rows = this.canvas(parent, this.rowHeight * run.rows.length + AXIS,
        `${run.name}: who ran when, ${run.rows.length} rows, 0 to ${seconds(END)}`);
      this.chart = this.canvas(parent, CHART,
        `${run.name}: KV blocks held of ${run.blocks}, and requests waiting, at most ${run.queue}`);
      this.said = make("p", "", parent);
      this.said.className = "said";
      this.said.setAttribute("aria-live", "polite");
      this.list(parent);
      this.listen();
    }
    canvas(parent, height, label) {
      const canvas = make("canvas", undefined, parent);
      canvas.style.height = `${height}px`;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", label);
      canvas.tabIndex = 0;
      return canvas;
    }
    list(parent) {
      const details = make("details", undefined, parent);
      make("summary", `Requests of ${this.run.name} as a table`, details);
      details.addEventListener("toggle", () => {
        if (details.querySelector("table")) return;
        const box = make("div", undefined, details);
        box.className = "wide";
        const table = make("table", undefined, box);
        const head = make("tr", undefined, make("thead", undefined, table));
        for (const name of ["request", "tenant", "arrived", "started", "ended", "reason", "prompt", "generated", "preempted"])
          make("th", name, head).scope = "col";
        const body = make("tbody", undefined, table);
        for (const row of this.run.rows) {
          const line = make("tr", undefined, body);
          const cells = [...row.slice(0, 8), row[9].length];
          cells.forEach((cell, place) => make(place ? "td" : "th", cell === null ? "-" : String(cell), line));
        }
      });
    }
    context(canvas) {
      const ratio = window.devicePixelRatio || 1;
      const width = canvas.clientWidth, height = canvas.clientHeight;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.fillStyle = colours.paper;
      pen.fillRect(0, 0, width, height);
      return [pen, width, height];
    }
    x(time, width) { return LEFT + ((time - view.from) / (view.to - view.from)) * (width - 2 * LEFT); }
    time(x, width) { return view.from + ((x - LEFT) / (width - 2 * LEFT)) * (view.to - view.from); }
    draw() { this.drawRows(); this.drawChart(); }
    drawRows() {
      const [pen, width] = this.context(this.rows);
      const size = this.rowHeight, gap = size > 4 ? 1 : 0;
      const bar = (begin, end, y, colour) => {
        if (end <= view.from || begin >= view.to) return;
        const left = Math.max(this.x(begin, width), 0), right = Math.min(this.x(end, width), width);
        pen.fillStyle = colour;
        pen.fillRect(left, y, Math.max(right - left, 0.6), size - gap);
      };
      this.run.rows.forEach((row, place) => {
        const [, , arrival, started, ended, , , , segments, preemptions] = row;
        const y = AXIS + place * size;
        bar(arrival, started === null ? ended : started, y, colours.waiting);
        if (started !== null) bar(started, ended, y, colours.held);
        for (const [when] of preemptions) {
          const back = segments.find(([, begin]) => begin >= when);
          bar(when, back ? back[1] : ended, y, colours.preempted);
        }
        for (const [kind, begin, end] of segments) bar(begin, end, y, colours[KINDS[kind]]);
        if (place === this.chosen) {
          pen.strokeStyle = colours.ink;
          pen.strokeRect(0.5, y - 0.5, width - 1, size);
        }
      });
      this.axis(pen, width);
    }
    axis(pen, width) {
      pen.fillStyle = colours.faint;
      pen.font = "11px system-ui, sans-serif";
      const span = view.to - view.from;
      const unit = 10 ** Math.floor(Math.log10(span / 4));
      const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => span / n <= 8) || span;
      for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
        pen.fillRect(this.x(t, width), 0, 1, 5);
        pen.fillText(`${+t.toPrecision(6)} s`, this.x(t, width) + 3, 12);
      }
    }
    drawChart() {
      const [pen, width, height] = this.context(this.chart);
      const line = (place, most, colour, fill) => {
        pen.beginPath();
        let last = null;
        for (const moment of this.run.moments) {
          const x = this.x(moment[0], width), y = height - 2 - (moment[place] / Math.max(most, 1)) * (height - 16);
          if (last === null) pen.moveTo(x, y); else { pen.lineTo(x, last); pen.lineTo(x, y); }
          last = y;
        }
        if (last !== null) pen.lineTo(this.x(this.run.end, width), last);
        pen.strokeStyle = colour;
        pen.stroke();
        if (fill && last !== null) {
          pen.lineTo(this.x(this.run.end, width), height);
          pen.lineTo(this.x(this.run.moments[0][0], width), height);
          pen.globalAlpha = 0.25; pen.fillStyle = colour; pen.fill(); pen.globalAlpha = 1;
        }
      };
      line(1, this.run.blocks, colours.used, true);
      line(2, this.run.queue, colours.queue, false);
      pen.fillStyle = colours.faint;
      pen.font = "11px system-ui, sans-serif";
      pen.fillText(`top: ${this.run.blocks} blocks, ${this.run.queue} waiting`, 6, 11);
    }
    rowAt(y) { return Math.floor((y - AXIS) / this.rowHeight); }
    choose(place) {
      if (!this.run.rows.length) return;
      this.chosen = Math.max(0, Math.min(this.run.rows.length - 1, place));
      this.said.textContent = describe(this.run.rows[this.chosen]).replaceAll("\n", "; ");
      this.drawRows();
    }
    momentAt(time) {
      let low = 0, high = this.run.moments.length;
      while (low < high) { const half = (low + high) >> 1; if (this.run.moments[half][0] <= time) low = half + 1; else high = half; }
      return this.run.moments[low - 1];
    }
    listen() {
      for (const canvas of [this.rows, this.chart]) {
        let from = null;
        canvas.addEventListener("pointerdown", (event) => { from = event.clientX; canvas.setPointerCapture(event.pointerId); });
        canvas.addEventListener("pointerup", () => { from = null; });
        canvas.addEventListener("pointercancel", () => { from = null; });
        canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
        canvas.addEventListener("pointermove", (event) => {
          if (from !== null) {
            move(((from - event.clientX) / (canvas.clientWidth - 2 * LEFT)) * (view.to - view.from));
            from = event.clientX;
          }
          this.tip(canvas, event);
        });
        canvas.addEventListener("wheel", (event) => {
          if (!event.ctrlKey) return;
          event.preventDefault();
          zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.offsetX, canvas.clientWidth));
        }, { passive: false });
        canvas.addEventListener("keydown", (event) => this.key(event));
      }
      this.rows.addEventListener("click", (event) => this.choose(this.rowAt(event.offsetY)));
    }
    key(event) {
      const span = view.to - view.from, middle = (view.to + view.from) / 2;
      const keys = {
        ArrowLeft: () => move(-span / 8), ArrowRight: () => move(span / 8),
        "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), "-": () => zoom(1.4, middle),
        0: () => show(0, END), Home: () => this.choose(0), End: () => this.choose(this.run.rows.length - 1),
        ArrowUp: () => this.choose(this.chosen - 1), ArrowDown: () => this.choose(this.chosen + 1),
      };
      if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
    }
    tip(canvas, event) {
      const tip = byId("tip"), time = this.time(event.offsetX, canvas.clientWidth);
      let text = "";
      if (canvas === this.rows) {
        const row = this.run.rows[this.rowAt(event.offsetY)];
        if (row) text = `${describe(row)}\nat ${seconds(time)}: ${stateAt(row, time) || "not here"}`;
      } else {
        const moment = this.momentAt(time);
        if (moment) text = `at ${seconds(time)}: ${moment[1]} of ${this.run.blocks} blocks held, ${moment[2]} waiting, ${moment[3]} running`;
      }
      tip.hidden = !text;
      tip.textContent = text;
      tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
    }
  }

  let pictures = [], asked = false;
  const redraw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; readColours(); for (const picture of pictures) picture.draw(); });
  };
  const show = (from, to) => {
    const span = Math.min(Math.max(to - from, END / 1e5), END);
    view.from = Math.min(Math.max(from, 0), END - span);
    view.to = view.from + span;
    redraw();
  };
  const move = (by) => show(view.from + by, view.to + by);
  const zoom = (factor, around) => show(around - (around - view.from) * factor, around + (view.to - around) * factor);

  showFigures();
  pictures = data.runs.map((run) => new Picture(run, make("section", undefined, byId("runs"))));
  redraw();
  window.addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
