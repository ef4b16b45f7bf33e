"use strict";
// The whole graph in a corner, stretched to a strip where it is long; a rectangle is what the view shows.

(() => {
  const MARGIN = 8;

  /**
   * `view` and `made` are those of the large canvas; `layout()` gives {x, y, boxes, left, width, height} or null, `fill(k)` the colour of a
   * box. Returns {element, draw, forget}: `forget` after a change of the layout or the colours.
   */
  V.minimap = ({ view, made, layout, fill }) => {
    const holder = V.el("div", { class: "minimap", title: "the whole graph: press to go there" });
    const small = V.canvas("The whole graph.", paint).attach(holder);
    small.canvas.tabIndex = -1;
    let picture = null, key = "";

    const scales = (width, height) => {
      const { left, width: w, height: h } = layout();
      const sx = (width - 2 * MARGIN) / Math.max(1, w), sy = (height - 2 * MARGIN) / Math.max(1, h);
      return { left, sx: Math.min(sx, 4 * sy), sy: Math.min(sy, 4 * sx) };
    };
    function paint(context, width, height) {
      const graph = layout();
      if (!graph) return;
      const { left, sx, sy } = scales(width, height), now = `${width} ${height} ${V.dark()}`;
      if (!picture || key !== now) {
        key = now;
        picture = document.createElement("canvas");
        const ratio = window.devicePixelRatio || 1;
        (picture.width = width * ratio), (picture.height = height * ratio);
        const to = picture.getContext("2d");
        to.scale(ratio, ratio);
        graph.boxes.forEach(({ w, h }, k) => {
          to.fillStyle = fill(k);
          to.fillRect(MARGIN + (graph.x[k] - w / 2 - left) * sx, MARGIN + (graph.y[k] - h / 2) * sy, Math.max(1.5, w * sx), Math.max(0.8, h * sy));
        });
      }
      context.drawImage(picture, 0, 0, width, height);
      const x = MARGIN + (view.x - left) * sx, y = MARGIN + view.y * sy, w = (made.width / view.scale) * sx, h = (made.height / view.scale) * sy;
      const x0 = Math.max(1, x), y0 = Math.max(1, y);
      context.strokeStyle = V.colour("accent");
      context.lineWidth = 2;
      context.strokeRect(x0, y0, Math.max(4, Math.min(width - 1, x + w) - x0), Math.max(4, Math.min(height - 1, y + h) - y0));
    }
    const go = (event) => {
      if (!layout() || (event.type === "pointermove" && !event.buttons)) return;
      const box = small.canvas.getBoundingClientRect(), { left, sx, sy } = scales(small.width, small.height);
      view.x = left + (event.clientX - box.left - MARGIN) / sx - made.width / 2 / view.scale;
      view.y = (event.clientY - box.top - MARGIN) / sy - made.height / 2 / view.scale;
      made.draw();
    };
    small.canvas.addEventListener("pointerdown", (event) => {
      small.canvas.setPointerCapture(event.pointerId);
      go(event);
    });
    small.canvas.addEventListener("pointermove", go);
    return {
      element: holder,
      draw() {
        const graph = layout();
        const fits = !graph || (graph.width * view.scale <= made.width && graph.height * view.scale <= made.height);
        holder.hidden = fits;
        if (fits) return;
        const scale = (holder.clientWidth - 2 * MARGIN) / Math.max(1, graph.width); // as high as the picture in it, at most what the style allows
        holder.style.height = `${Math.ceil(2 * MARGIN + Math.max(24, 4 * scale * graph.height))}px`;
        small.draw();
      },
      forget: () => (picture = null),
    };
  };
})();
