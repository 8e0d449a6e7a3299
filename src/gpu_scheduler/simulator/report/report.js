// Tips under the pointer, and legends that hide a policy in every chart. The page reads well without.
(() => {
  "use strict";
  const tip = document.getElementById("tip");

  const element = (name, text, className) => {
    const made = document.createElement(name);
    made.textContent = text || "";
    if (className) made.className = className;
    return made;
  };

  const showTip = (event, children) => {
    tip.replaceChildren(...children);
    tip.hidden = false;
    const room = 14;
    const left = event.clientX + room + tip.offsetWidth > innerWidth
      ? event.clientX - room - tip.offsetWidth : event.clientX + room;
    const top = Math.min(event.clientY + room, innerHeight - tip.offsetHeight - 4);
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  };

  const draw = (cursor, name, attributes) => {
    const made = document.createElementNS(cursor.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };

  const hidden = new Set();
  const colours = 8;

  const followPointer = (figure, data) => {
    const svg = figure.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const [left, top, right, bottom] = data.box;
    const last = data.names.length - 1;
    const clear = () => { cursor.replaceChildren(); tip.hidden = true; };
    svg.addEventListener("pointerleave", clear);
    svg.addEventListener("pointermove", (event) => {
      const place = new DOMPoint(event.clientX, event.clientY)
        .matrixTransform(svg.getScreenCTM().inverse());
      const across = ((place.x - left) / (right - left) - data.first) / (1 - 2 * data.first);
      if (across < -0.03 || across > 1.03) return clear();
      const point = Math.max(0, Math.min(last, Math.round(across * last)));
      const x = left + (right - left) * (data.first + (1 - 2 * data.first) * point / last);
      const marks = [draw(cursor, "line", { x1: x, x2: x, y1: top, y2: bottom })];
      const rows = [element("b", data.names[point])];
      for (const line of data.lines) {
        const value = line.values[point];
        if (value === null || hidden.has(line.policy)) continue;
        const colour = `colour${line.policy % colours}`;
        const y = bottom - (bottom - top) * value / data.top;
        marks.push(draw(cursor, "circle", { cx: x, cy: y, r: 4, class: colour }));
        const name = element("span");
        name.append(element("i", "", `swatch ${colour}`), line.name);
        const row = element("span");
        const text = value.toLocaleString("en", { maximumFractionDigits: 1 });
        row.append(name, data.unit === "%" ? `${text}%` : `${text} ${data.unit}`);
        rows.push(row);
      }
      cursor.replaceChildren(...marks);
      return showTip(event, rows);
    });
  };

  for (const figure of document.querySelectorAll("figure")) {
    const data = figure.querySelector("script");
    if (data) followPointer(figure, JSON.parse(data.textContent));
  }
  for (const shape of document.querySelectorAll("[data-tip]")) {
    shape.addEventListener("pointermove", (event) => showTip(event, [shape.dataset.tip]));
    shape.addEventListener("pointerleave", () => { tip.hidden = true; });
  }
  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => {
      const policy = button.dataset.toggle;
      const off = !hidden.delete(Number(policy));
      if (off) hidden.add(Number(policy));
      for (const other of document.querySelectorAll(`[data-toggle="${policy}"]`)) {
        other.setAttribute("aria-pressed", String(!off));
      }
      for (const shape of document.querySelectorAll(`[data-policy="${policy}"]`)) {
        shape.classList.toggle("off", off);
      }
    });
  }
})();
