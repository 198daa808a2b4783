"use strict";
// A read-out of all series at the pointer. The page is complete without it.
(() => {
  const box = document.getElementById("readout");
  for (const cursor of document.querySelectorAll("svg .cursor")) {
    const svg = cursor.ownerSVGElement;
    const plot = JSON.parse(svg.parentElement.querySelector("script").textContent);
    const hide = () => { box.hidden = true; cursor.classList.remove("on"); };
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      const x = (event.clientX - frame.left) / frame.width * plot.width;
      if (x < plot.left || x > plot.right) { hide(); return; }
      const at = plot.start + (x - plot.left) / (plot.right - plot.left) * (plot.end - plot.start);
      const bin = Math.floor((at - plot.start) / plot.bin);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.classList.add("on");
      box.replaceChildren();
      const add = (name, value) => {
        const row = document.createElement("div");
        const words = document.createElement("span");
        const figure = document.createElement("b");
        words.textContent = name;
        figure.textContent = value;
        row.append(words, figure);
        box.append(row);
      };
      add("time", `${at.toFixed(1)} s`);
      for (const [name, values] of plot.series) {
        const value = values[bin];
        if (value !== null && value !== undefined) add(name, value.toLocaleString("en"));
      }
      box.hidden = false;
      const left = event.clientX + 18 + box.offsetWidth > window.innerWidth
        ? event.clientX - 18 - box.offsetWidth : event.clientX + 18;
      box.style.left = `${Math.max(4, left)}px`;
      box.style.top = `${Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8)}px`;
    });
  }
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("article details")) details.open = true;
  });
})();
