"use strict";
// Canvases that follow their size and the theme, and views that are moved with mouse, fingers and keys.

(() => {
  const drawn = new Set();

  /** A canvas in a box that fills its parent. `paint(context, width, height)` draws in CSS pixels. */
  V.canvas = (label, paint) => {
    const canvas = V.el("canvas", { tabindex: 0, role: "img", "aria-label": label });
    const made = { canvas, width: 0, height: 0, request: null, frames: 0, lastMs: 0 };
    made.draw = () => {
      made.request ??= requestAnimationFrame(() => {
        made.request = null;
        const box = canvas.parentElement?.getBoundingClientRect();
        if (!box?.width || !box.height) return;
        const ratio = window.devicePixelRatio || 1;
        const width = Math.round(box.width * ratio), height = Math.round(box.height * ratio);
        if (canvas.width !== width || canvas.height !== height) (canvas.width = width), (canvas.height = height);
        made.width = box.width;
        made.height = box.height;
        const start = performance.now();
        const context = canvas.getContext("2d");
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        context.clearRect(0, 0, box.width, box.height);
        paint(context, box.width, box.height);
        made.lastMs = performance.now() - start;
        made.frames++;
      });
    };
    drawn.add(made);
    V.listeners.push(made.draw);
    made.attach = (parent) => {
      parent.append(canvas);
      new ResizeObserver(made.draw).observe(parent);
      return made;
    };
    return made;
  };

  let colours = {};
  /** A colour of style.css, by its variable's name. */
  V.colour = (name) => (colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  V.repaint = () => {
    colours = {};
    for (const one of drawn) one.draw();
  };

  /**
   * Moves a view: drag, wheel, pinch and keys. `view` has x, y (world at the canvas's corner) and scale; `axes` "xy", or "x" where
   * only x moves. `limits()` gives {scale: [least, most]}; `click(x, y)` gets CSS pixels, as `hover(x, y)` does.
   * `span(from, to)` gets the ends of a drag with the Shift key, or while `spans()` is true; such a drag does not move the view.
   */
  V.movable = (made, view, { axes = "xy", limits, click, hover, changed, span, spans = () => false }) => {
    const { canvas } = made, fingers = new Map();
    let travelled = 0, spread = 0, from = null;
    const both = axes === "xy";
    const update = () => {
      changed?.();
      made.draw();
    };
    const zoom = (factor, px, py) => {
      const [least, most] = limits().scale;
      const scale = Math.max(least, Math.min(most, view.scale * factor));
      view.x += px / view.scale - px / scale;
      if (both) view.y += py / view.scale - py / scale;
      view.scale = scale;
      update();
    };
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      const pans = both ? !event.ctrlKey && event.shiftKey : Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (!both && !event.ctrlKey && !pans && !event.altKey && canvas.dataset.wheel !== "zoom") return; // the page scrolls
      event.preventDefault();
      const step = event.deltaMode === 1 ? 16 : 1;
      if (pans) {
        view.x += ((event.deltaX || event.deltaY) * step) / view.scale;
        update();
      } else zoom(Math.exp(-event.deltaY * step * (event.ctrlKey ? 0.01 : 0.0016)), ...place(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, place(event));
      if (fingers.size === 1) travelled = 0;
      from = span && (event.shiftKey || spans()) ? place(event)[0] : null;
      spread = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event), before = fingers.get(event.pointerId);
      if (!before) return hover?.(...now);
      fingers.set(event.pointerId, now);
      travelled += Math.abs(now[0] - before[0]) + Math.abs(now[1] - before[1]);
      if (from !== null && fingers.size === 1) return span(Math.min(from, now[0]), Math.max(from, now[0]));
      view.x -= (now[0] - before[0]) / view.scale / fingers.size;
      if (both) view.y -= (now[1] - before[1]) / view.scale / fingers.size;
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()];
        const apart = Math.hypot(a[0] - b[0], both ? a[1] - b[1] : 0);
        if (spread && apart) zoom(apart / spread, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        spread = apart;
      }
      update();
    });
    const lift = (event) => {
      const at = fingers.get(event.pointerId);
      fingers.delete(event.pointerId);
      spread = 0;
      if (event.type === "pointerup" && at && travelled < 6) click?.(...at);
    };
    canvas.addEventListener("pointerup", lift);
    canvas.addEventListener("pointercancel", lift);
    canvas.addEventListener("pointerleave", () => hover?.(-1, -1));
    canvas.addEventListener("keydown", (event) => {
      const step = 60 / view.scale;
      const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
      if (event.key === "+" || event.key === "=") zoom(1.3, made.width / 2, made.height / 2);
      else if (event.key === "-") zoom(1 / 1.3, made.width / 2, made.height / 2);
      else if (both && moves[event.key]) {
        view.x += moves[event.key][0];
        view.y += moves[event.key][1];
        update();
      } else return;
      event.preventDefault();
    });
    return { zoom, update };
  };

  /** Text that is cut to a width. */
  V.fit = (context, text, width) => {
    if (context.measureText(text).width <= width) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const mid = (low + high + 1) >> 1;
      if (context.measureText(`${text.slice(0, mid)}…`).width <= width) low = mid;
      else high = mid - 1;
    }
    return low ? `${text.slice(0, low)}…` : "";
  };

  const tip = V.el("div", { class: "tip", role: "status" });
  /** A hint beside the pointer; without lines it goes. */
  V.hint = (made, px, py, lines) => {
    if (!tip.parentElement) document.body.append(tip);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.map((line, k) => V.el(k ? "div" : "strong", {}, line)));
    const box = made.canvas.getBoundingClientRect(), mine = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left + px + 14, innerWidth - mine.width - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(box.top + py + 16, innerHeight - mine.height - 8))}px`;
  };
  tip.hidden = true;
})();
