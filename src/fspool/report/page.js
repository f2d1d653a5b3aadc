"use strict";
(() => {
  const source = document.querySelector("#polygons > script.data");
  const data = source && JSON.parse(source.textContent);
  if (!data || !data.sizes) return;

  const SVG = "http://www.w3.org/2000/svg";
  const TRAIL = 10; // degrees
  const SPEED = 30; // degrees a second
  const SLOTS = 8; // colours
  const [LOW, PEAK] = [0.1, 300]; // of the strip, which is logarithmic
  const find = (id) => document.getElementById(id);
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const narrow = matchMedia("(max-width: 40rem)");

  function make(parent, tag, attributes = {}, text = "") {
    const space = parent instanceof SVGElement || tag === "svg" ? SVG : parent.namespaceURI;
    const element = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    parent.append(element);
    return element;
  }

  function unpack(text, Kind) {
    const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    return new Kind(bytes.buffer);
  }

  // One side: a polygon with a model's outputs, and the strip below it.
  class Stage {
    constructor(element, seek) {
      this.element = element;
      this.seek = seek;
    }

    show(size, model) {
      this.size = size;
      this.outputs = unpack(model.outputs, Int16Array);
      this.error = unpack(model.error, Float32Array);
      this.movement = unpack(model.movement, Float32Array);
      this.element.replaceChildren();
      make(this.element, "h3", {}, model.label).style.color = `var(--${model.model})`;
      this.numbers = make(this.element, "p", { class: "numbers" });
      this.drawField(model);
      this.drawStrip(model);
    }

    drawField(model) {
      const n = this.size.n;
      const radius = narrow.matches ? 0.13 : 0.095;
      const label = `Corners and outputs of ${model.label}`;
      const box = { class: "field", viewBox: "-1.25 -1.25 2.5 2.5", role: "img", "aria-label": label };
      const field = make(this.element, "svg", box);
      make(field, "circle", { class: "path", r: 1 });
      const each = (draw) => Array.from({ length: n }, (_, slot) => draw(slot));
      this.trails = each((slot) => {
        const trail = make(field, "path", { class: "trail" });
        trail.style.stroke = `var(--slot-${slot % SLOTS})`;
        return trail;
      });
      this.rings = each(() => make(field, "circle", { class: "ring", r: radius + 0.035 }));
      this.dots = each((slot) => {
        const dot = make(field, "g", { class: "dot" });
        make(dot, "circle", { r: radius }).style.fill = `var(--slot-${slot % SLOTS})`;
        make(dot, "text", { "font-size": 1.1 * radius }, String(slot + 1));
        return dot;
      });
    }

    drawStrip(model) {
      const [high, edge, foot] = narrow.matches ? [230, 46, 48] : [96, 26, 20]; // a degree wide each
      const box = { class: "strip", viewBox: `${-edge} -6 ${380 + edge} ${high + foot}`, role: "img" };
      const strip = make(this.element, "svg", { ...box, "aria-label": `Speed of ${model.label} by angle` });
      const height = (value) =>
        (high * Math.log(PEAK / Math.min(PEAK, Math.max(LOW, value)))) / Math.log(PEAK / LOW);
      for (const mark of [0.1, 1, 10, 100]) {
        const y = height(mark);
        make(strip, "line", { class: mark === 1 ? "grid one" : "grid", x1: 0, x2: 360, y1: y, y2: y });
        make(strip, "text", { x: -4, y, "text-anchor": "end", "dominant-baseline": "central" }, String(mark));
      }
      for (const degrees of narrow.matches ? [0, 180, 360] : [0, 90, 180, 270, 360]) {
        make(strip, "text", { x: degrees, y: high + 0.72 * foot, "text-anchor": "middle" }, `${degrees}°`);
      }
      const way = Array.from(this.movement, (value, i) => `${this.degrees(i)} ${height(value).toFixed(2)}`);
      const curve = make(strip, "path", { class: "curve", d: `M${way.join("L")}` });
      curve.style.stroke = `var(--${model.model})`;
      this.cursor = make(strip, "line", { class: "cursor", y1: 0, y2: high });
      strip.addEventListener("pointerdown", (event) => {
        const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(strip.getScreenCTM().inverse());
        this.seek(Math.round((Math.min(360, Math.max(0, at.x)) * this.size.angles) / 360));
      });
    }

    degrees(index) {
      return (index * 360) / this.size.angles;
    }

    place(index, slot) {
      const at = 2 * (index * this.size.n + slot);
      return [this.outputs[at] / data.unit, -this.outputs[at + 1] / data.unit];
    }

    turn(index) {
      const { n, angles } = this.size;
      const length = Math.round((TRAIL * angles) / 360);
      for (let slot = 0; slot < n; slot++) {
        const angle = 2 * Math.PI * (slot / n + index / angles);
        this.rings[slot].setAttribute("cx", Math.sin(angle));
        this.rings[slot].setAttribute("cy", -Math.cos(angle));
        this.dots[slot].setAttribute("transform", `translate(${this.place(index, slot)})`);
        const way = [];
        for (let back = length; back >= 0; back--) way.push(this.place((index - back + angles) % angles, slot));
        this.trails[slot].setAttribute("d", `M${way.join("L")}`);
      }
      this.cursor.setAttribute("x1", this.degrees(index));
      this.cursor.setAttribute("x2", this.degrees(index));
      this.numbers.replaceChildren();
      this.say("error ", readable(100 * this.error[index]), " hundredths");
      this.say("speed ", readable(this.movement[index]), " ×");
    }

    say(name, value, unit) {
      const part = make(this.numbers, "span", {}, name);
      make(part, "b", {}, value);
      part.append(unit);
    }
  }

  function readable(value) {
    if (value < 0.0001) return "<0.0001";
    if (value >= 10) return value.toFixed(1);
    return value >= 0.1 ? value.toFixed(2) : value.toFixed(4);
  }

  // The whole figure
  const slider = find("slider"), play = find("play"), sizes = find("size"), baseline = find("baseline");
  const left = new Stage(find("left"), seek), right = new Stage(find("right"), seek);
  let size, place, before = null, timer = null; // place: like the slider's value, with a fraction

  function option(select, value, text) {
    make(select, "option", { value }, text);
  }

  function chooseSize() {
    const angle = size ? place / size.angles : 0;
    size = data.sizes[sizes.selectedIndex];
    const wanted = baseline.value;
    baseline.replaceChildren();
    for (const model of size.models.slice(1)) option(baseline, model.model, model.label);
    baseline.disabled = size.models.length < 3;
    if (size.models.some((model) => model.model === wanted)) baseline.value = wanted;
    slider.max = size.angles - 1;
    place = angle * size.angles;
    right.show(size, size.models[0]);
    chooseBaseline();
  }

  function chooseBaseline() {
    left.show(size, size.models[baseline.selectedIndex + 1]);
    turn();
  }

  function turn() {
    const index = Math.floor(place) % size.angles;
    const degrees = ((index * 360) / size.angles).toFixed(1);
    slider.value = index;
    slider.setAttribute("aria-valuetext", `${degrees} degrees`);
    find("angle").textContent = `${degrees}°`;
    left.turn(index);
    right.turn(index);
  }

  function seek(index) {
    place = ((index % size.angles) + size.angles) % size.angles;
    turn();
  }

  function advance(degrees) {
    seek(place + (degrees * size.angles) / 360);
  }

  function frame(now) {
    if (before !== null) advance((SPEED * Math.min(now - before, 100)) / 1000);
    before = now;
    timer = requestAnimationFrame(frame);
  }

  // Where motion is not wanted, the polygon moves on in single steps.
  function start() {
    timer = still.matches ? setInterval(() => advance(5), 700) : requestAnimationFrame(frame);
  }

  function stop() {
    cancelAnimationFrame(timer);
    clearInterval(timer);
    timer = before = null;
  }

  function toggle() {
    timer === null ? start() : stop();
    play.setAttribute("aria-pressed", String(timer !== null));
    play.textContent = timer === null ? "▶ Play" : "⏸ Pause";
  }

  for (const each of data.sizes) option(sizes, each.n, each.n);
  sizes.selectedIndex = Math.max(0, data.sizes.findIndex((each) => each.n === 4));
  slider.addEventListener("input", () => seek(Number(slider.value)));
  sizes.addEventListener("change", chooseSize);
  baseline.addEventListener("change", chooseBaseline);
  play.addEventListener("click", toggle);
  narrow.addEventListener("change", chooseSize);
  chooseSize();
})();
