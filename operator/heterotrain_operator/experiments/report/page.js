"use strict";
const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.style.colorScheme || (dark.matches ? "dark" : "light")) === "dark";
const button = document.getElementById("theme"), name = () => { button.textContent = isDark() ? "light" : "dark"; };
button.hidden = false;
button.onclick = () => { root.style.colorScheme = isDark() ? "light" : "dark"; name(); };
dark.onchange = name;
name();

const under = document.body.appendChild(Object.assign(document.createElement("div"), { id: "under", hidden: true }));
const NS = "http://www.w3.org/2000/svg", SIDE = 1000, said = (value) => +value.toPrecision(4);

// Numbers for the ticks between two values, about five of them.
const ticks = (least, most, whole) => {
  const rough = (most - least) / 5, unit = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].map((factor) => unit * factor).find((each) => each >= rough), whole ? 1 : 0);
  const found = [];
  for (let tick = Math.ceil(least / step) * step; tick <= most; tick += step) found.push(+tick.toPrecision(12));
  return found;
};

for (const figure of document.querySelectorAll("figure.chart")) {
  const frame = figure.querySelector(".panels"), datas = [...figure.querySelectorAll(".data")];
  const first = +figure.dataset.x0, last = +figure.dataset.x1;
  let [from, to] = [0, SIDE], begun = null, chosen = null;
  const place = (event) => {
    const box = datas[0].getBoundingClientRect();
    return from + Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1) * (to - from);
  };
  const value = (at) => first + (at / SIDE) * (last - first);

  const zoom = (low, high) => {
    [from, to] = [low, high];
    for (const data of datas) data.setAttribute("viewBox", `${from} 0 ${to - from} ${SIDE}`);
    const where = (x) => (((x - first) / (last - first)) * SIDE - from) / (to - from);
    for (const panel of figure.querySelectorAll(".panel")) {
      const old = [...panel.querySelectorAll(".tick")], height = +panel.getAttribute("height");
      const labelled = old.some((tick) => tick.querySelector("text"));
      for (const x of ticks(value(from), value(to), "whole" in figure.dataset)) {
        const tick = document.createElementNS(NS, "g"), at = `${100 * where(x)}%`;
        tick.setAttribute("class", "tick");
        const line = tick.appendChild(document.createElementNS(NS, "line"));
        for (const [key, set] of [["x1", at], ["x2", at], ["y2", height]]) line.setAttribute(key, set);
        if (labelled) {
          const text = tick.appendChild(document.createElementNS(NS, "text"));
          for (const [key, set] of [["x", at], ["y", height + 16], ["text-anchor", "middle"]]) text.setAttribute(key, set);
          text.textContent = x.toLocaleString("en");
        }
        panel.insertBefore(tick, old[0]);
      }
      for (const tick of old) tick.remove();
      for (const text of panel.querySelectorAll("text.mark")) {
        const at = (+text.dataset.at * SIDE - from) / (to - from);
        text.setAttribute("x", `${100 * at}%`);
        text.style.display = at >= 0 && at <= 1 ? "" : "none";
      }
    }
  };

  // The lines' values at a place, from their paths.
  const read = (at) => datas.flatMap((data) => {
    const low = +data.dataset.y0, high = +data.dataset.y1;
    return [...data.querySelectorAll("path.line")].flatMap((path) => {
      const points = (path.points ??= path.getAttribute("d").slice(1).split("L").map((point) => point.split(" ").map(Number)));
      const next = points.findIndex((point) => point[0] > at);
      if (next === 0 || (next < 0 && at - points.at(-1)[0] > SIDE / 100)) return [];
      const [[x0, y0], [x1, y1]] = next < 0 ? [points.at(-1), points.at(-1)] : [points[next - 1], points[next]];
      const share = 1 - (y0 + (x1 > x0 ? ((at - x0) / (x1 - x0)) * (y1 - y0) : 0)) / SIDE;
      return `${path.dataset.name || "value"}  ${said("log" in data.dataset ? low * (high / low) ** share : low + share * (high - low))}`;
    });
  });

  frame.onpointermove = (event) => {
    const at = place(event);
    if (begun !== null) {
      for (const rect of chosen) {
        rect.setAttribute("x", Math.min(begun, at));
        rect.setAttribute("width", Math.abs(at - begun));
      }
    }
    const lines = read(at);
    under.hidden = lines.length === 0;
    under.textContent = [`${figure.dataset.x} ${said(value(at))}`, ...lines.slice(0, 16)].join("\n");
    under.style.left = `${Math.min(event.clientX + 14, innerWidth - under.offsetWidth - 4)}px`;
    under.style.top = `${Math.min(event.clientY + 14, innerHeight - under.offsetHeight - 4)}px`;
  };
  frame.onpointerleave = () => { under.hidden = true; };
  frame.onpointerdown = (event) => {
    if (event.button) return;
    frame.setPointerCapture(event.pointerId);
    begun = place(event);
    chosen = datas.map((data) => data.appendChild(document.createElementNS(NS, "rect")));
    for (const rect of chosen) {
      rect.setAttribute("class", "chosen");
      rect.setAttribute("height", SIDE);
    }
  };
  const ended = (event) => {
    if (begun === null) return;
    for (const rect of chosen) rect.remove();
    const [low, high] = [begun, place(event)].sort((one, other) => one - other);
    begun = null;
    if (event.type === "pointerup" && high - low > (to - from) / 50) zoom(low, high);
  };
  frame.onpointerup = frame.onpointercancel = ended;
  frame.ondblclick = () => zoom(0, SIDE);
}
