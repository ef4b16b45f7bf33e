"use strict";
// What a canvas shows, as a file: SVG by a context that writes elements, or PNG.

(() => {
  const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]).replace(/[\x00-\x08\x0b\x0c\x0e-\x1f]/g, "\ufffd");
  const round = (x) => Math.round(x * 100) / 100;
  const ANCHORS = { left: "start", right: "end", center: "middle" }, BASELINES = { middle: "central", alphabetic: "auto" };
  const measure = document.createElement("canvas").getContext("2d");

  /** The part of CanvasRenderingContext2D that this page paints with, which writes SVG elements. */
  V.SvgContext = class {
    constructor() {
      this.parts = [];
      this.chunks = [];
      this.saved = [];
      this.path = "";
      this.clips = 0;
      this.now = { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "10px sans-serif", textAlign: "left", textBaseline: "alphabetic", dash: [], clip: "" };
      for (const name of ["fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline"]) {
        Object.defineProperty(this, name, { get: () => this.now[name], set: (value) => (this.now[name] = value) });
      }
    }
    save() { this.saved.push({ ...this.now }); }
    restore() { this.now = this.saved.pop(); }
    setLineDash(dash) { this.now.dash = dash; }
    beginPath() { this.path = ""; }
    moveTo(x, y) { this.path += `M${round(x)} ${round(y)}`; }
    lineTo(x, y) { this.path += `L${round(x)} ${round(y)}`; }
    quadraticCurveTo(a, b, x, y) { this.path += `Q${round(a)} ${round(b)} ${round(x)} ${round(y)}`; }
    rect(x, y, w, h) { this.path += `M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}z`; }
    roundRect(x, y, w, h, r) {
      r = Math.max(0, Math.min(r, w / 2, h / 2));
      const arc = (dx, dy) => `a${r} ${r} 0 0 1 ${dx} ${dy}`;
      this.path += `M${round(x + r)} ${round(y)}h${round(w - 2 * r)}${arc(r, r)}v${round(h - 2 * r)}${arc(-r, r)}h${round(2 * r - w)}${arc(-r, -r)}v${round(2 * r - h)}${arc(r, -r)}z`;
    }
    measureText(text) {
      measure.font = this.now.font;
      return measure.measureText(text);
    }
    add(tag, attributes, content) {
      const all = { ...attributes, opacity: this.now.globalAlpha === 1 ? null : round(this.now.globalAlpha), "clip-path": this.now.clip || null };
      const text = Object.entries(all).filter(([, value]) => value !== null).map(([name, value]) => ` ${name}="${escape(value)}"`).join("");
      this.parts.push(content === undefined ? `<${tag}${text}/>` : `<${tag}${text}>${escape(content)}</${tag}>`);
    }
    lines() { return { fill: "none", stroke: this.now.strokeStyle, "stroke-width": round(this.now.lineWidth), "stroke-dasharray": this.now.dash.join(" ") || null }; }
    fill() { this.add("path", { d: this.path, fill: this.now.fillStyle }); }
    stroke() { this.add("path", { d: this.path, ...this.lines() }); }
    clip() {
      this.now.clip = `url(#c${this.clips})`;
      this.parts.push(`<clipPath id="c${this.clips++}"><path d="${this.path}"/></clipPath>`);
    }
    fillRect(x, y, w, h) { this.add("rect", { x: round(x), y: round(y), width: round(Math.abs(w)), height: round(Math.abs(h)), fill: this.now.fillStyle }); }
    strokeRect(x, y, w, h) { this.add("rect", { x: round(x), y: round(y), width: round(Math.abs(w)), height: round(Math.abs(h)), ...this.lines() }); }
    fillText(text, x, y) {
      if (!text) return;
      const [, weight, size, family] = /^(?:(\d+) )?(\S+) (.*)$/.exec(this.now.font);
      this.add("text", { x: round(x), y: round(y), fill: this.now.fillStyle, "font-size": size, "font-family": family, "font-weight": weight ?? null,
        "text-anchor": this.now.textAlign === "left" ? null : ANCHORS[this.now.textAlign], "dominant-baseline": this.now.textBaseline === "alphabetic" ? null : BASELINES[this.now.textBaseline] }, text);
    }
    /** Puts together what was written since the last call: at the end of a large file that would take long. */
    settle() {
      this.chunks.push(this.parts.join("\n"));
      this.parts = [];
    }
    /** The file as a list of texts; `x` and `y` are the corner of what it shows. */
    file(width, height, x = 0, y = 0) {
      this.settle();
      const box = [x, y, width, height].map(round);
      return [`<svg xmlns="http://www.w3.org/2000/svg" width="${box[2]}" height="${box[3]}" viewBox="${box.join(" ")}"><rect x="${box[0]}" y="${box[1]}" width="${box[2]}" height="${box[3]}" fill="${V.colour("panel")}"/>`, ...this.chunks, "</svg>\n"];
    }
  };

  /** Buttons that save what a canvas shows. `svg()` gives the texts of the file, or a promise of them. */
  V.pictures = (name, made, svg) => [
    V.el("button", { class: "save", title: "save as an SVG file", click: async () => V.save(`${name}.svg`, "image/svg+xml", await svg()) }, "SVG"),
    V.el("button", { class: "save", title: "save what is shown as a PNG file", click: () => made.canvas.toBlob((blob) => blob && V.save(`${name}.png`, "image/png", blob)) }, "PNG")];
})();
