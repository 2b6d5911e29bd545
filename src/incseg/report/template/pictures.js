// The picture browser: an image, its ground truth and every run's prediction, by step, with classes to switch off.
if (report.pictures.length) {
  const unlabelled = report.unlabelled.channel;
  const colours = new Map(report.colours.map((colour, channel) => [channel, colour]));
  colours.set(unlabelled, report.unlabelled.colour);
  const nameOf = (channel) => (channel === unlabelled ? "not labelled" : report.classes[channel] ?? `class ${channel}`);

  const step = find("#step");
  const opacity = find("#opacity");
  const hiddenClasses = new Set([0, unlabelled]);
  const toggles = new Map();
  let wanted = 0; // the picture asked for last; unpacking takes a moment
  let shown = 0; // the picture on the page
  let maps = null; // its label maps: {truth: [by step], predictions: [by run][by step]}, Uint8Array or null

  // Label maps are base64 of compressed bytes, one per pixel: exact class ids, which an image in a canvas might not keep.
  async function unpack(text) {
    if (text === null) return null;
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  const unpackAll = (texts) => Promise.all(texts.map(unpack));

  // ---- the views
  const views = ["image", "ground truth", ...report.runs].map((name, index) => {
    const view = {
      map: () => (index === 0 ? undefined : index === 1 ? maps.truth[step.value] : maps.predictions[index - 2][step.value]),
      image: make("img", { alt: "" }),
      canvas: make("canvas"),
      note: make("span", { className: "note" }),
      name,
    };
    const stack = make("div", { className: "stack" }, view.image, view.canvas);
    view.canvas.setAttribute("role", "img");
    find(".views").append(make("figure", {}, stack, make("figcaption", {}, make("strong", {}, name), " ", view.note)));
    view.canvas.addEventListener("pointermove", (event) => point(view, event));
    return view;
  });

  /** Colours by channel as four bytes in one number; a hidden class is transparent. */
  function inks() {
    const table = new Uint8Array(4 * 256);
    for (const [channel, colour] of colours) {
      if (!hiddenClasses.has(channel)) table.set([...colour, 255], 4 * channel);
    }
    return new Uint32Array(table.buffer);
  }

  function paint(canvas, map, { width, height }, ink) {
    Object.assign(canvas, { width, height });
    if (!map) return;
    const picture = new ImageData(width, height);
    const pixels = new Uint32Array(picture.data.buffer);
    map.forEach((channel, i) => { pixels[i] = ink[channel]; });
    canvas.getContext("2d").putImageData(picture, 0, 0);
  }

  /** Share of labelled pixels that are predicted correctly. */
  function accuracy(prediction, truth) {
    let labelled = 0, right = 0;
    truth.forEach((channel, i) => {
      if (channel === unlabelled) return;
      labelled += 1;
      right += prediction[i] === channel;
    });
    return labelled ? `${((100 * right) / labelled).toFixed(1)} %` : "";
  }

  function draw() {
    const picture = report.pictures[shown];
    const truth = maps.truth[step.value];
    const ink = inks();
    views.forEach((view, index) => {
      const map = view.map();
      view.image.src = picture.image;
      view.canvas.style.opacity = opacity.value / 100;
      view.canvas.setAttribute("aria-label", `${view.name} of ${picture.name} after step ${step.value}`);
      paint(view.canvas, map, picture, ink);
      view.note.textContent = map === null ? "not saved" : index > 1 && truth ? accuracy(map, truth) : "";
    });
    find("#step-shown").textContent = step.value;
    find("#opacity-shown").textContent = `${opacity.value} %`;
  }

  function point(view, event) {
    const { width, height } = report.pictures[shown];
    const x = Math.floor((event.offsetX / view.canvas.clientWidth) * width);
    const y = Math.floor((event.offsetY / view.canvas.clientHeight) * height);
    const reads = views.filter((other) => other.map()).map((other) => `${other.name}: ${nameOf(other.map()[y * width + x])}`);
    find("#pointed").textContent = reads.join(" · ");
  }

  // ---- the classes
  for (const [channel, colour] of colours) {
    const box = make("input", { type: "checkbox", checked: !hiddenClasses.has(channel) });
    const swatch = make("span", { className: "swatch" });
    swatch.style.backgroundColor = `rgb(${colour})`;
    box.addEventListener("change", () => {
      box.checked ? hiddenClasses.delete(channel) : hiddenClasses.add(channel);
      draw();
    });
    toggles.set(channel, { box, label: make("label", {}, box, swatch, nameOf(channel)) });
    find(".toggles").append(toggles.get(channel).label);
  }

  function switchAll(on) {
    for (const [channel, { box, label }] of toggles) {
      if (label.hidden) continue;
      box.checked = on;
      on ? hiddenClasses.delete(channel) : hiddenClasses.add(channel);
    }
    draw();
  }

  function offerClasses() {
    const present = new Set();
    for (const map of [...maps.truth, ...maps.predictions.flat()]) map?.forEach((channel) => present.add(channel));
    for (const [channel, { label }] of toggles) label.hidden = !present.has(channel);
  }

  // ---- the images
  async function choose(index) {
    wanted = index;
    const picture = report.pictures[index];
    const unpacked = { truth: await unpackAll(picture.truth), predictions: await Promise.all(picture.predictions.map(unpackAll)) };
    if (wanted !== index) return;
    [shown, maps] = [index, unpacked];
    radios[index].checked = true;
    offerClasses();
    draw();
  }

  const radios = report.pictures.map((picture, index) => {
    const radio = make("input", { type: "radio", name: "picture" });
    radio.setAttribute("aria-label", picture.name);
    radio.addEventListener("change", () => choose(index));
    find(".thumbnails").append(make("label", { title: picture.name }, radio, make("img", { src: picture.image, alt: "" })));
    return radio;
  });

  step.addEventListener("input", draw);
  opacity.addEventListener("input", draw);
  find("#all-classes").addEventListener("click", () => switchAll(true));
  find("#no-classes").addEventListener("click", () => switchAll(false));
  find("#pictures").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const turn = { n: 1, p: -1 }[event.key];
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const count = report.pictures.length;
    if (turn) choose((wanted + turn + count) % count);
    if (move && !["range", "radio"].includes(event.target.type)) { // these handle arrow keys themselves
      step.valueAsNumber += move;
      draw();
    }
  });
  reveal(find("#browser"));
  choose(0);
}
