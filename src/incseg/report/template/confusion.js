// The confusion matrix of a run after a step, and its most frequent mistakes.
{
  const run = find("#confusion-run");
  const step = find("#confusion-step");
  const table = find("#confusion-table");
  const narrow = matchMedia("(max-width: 30rem)");
  const crowded = () => (narrow.matches ? 6 : 30); // with more classes, cells are too small for numbers

  const percent = (thousandths) => (thousandths / 10).toFixed(1);

  /** [channel, share, channel, share, …] as one value per channel. */
  function dense(sparse, length) {
    const row = new Array(length).fill(0);
    for (let i = 0; i < sparse.length; i += 2) row[sparse[i]] = sparse[i + 1];
    return row;
  }

  function cell(share, truth, prediction, withNumber) {
    const level = Math.round(10 * Math.sqrt(share / 1000)); // the square root makes small shares visible
    const element = make("td", { className: `level-${level}` });
    if (withNumber && share > 0) element.textContent = share < 10 ? "<1" : Math.round(share / 10);
    element.dataset.reads = `${truth} predicted as ${prediction}: ${percent(share)} % of its pixels`;
    if (truth === prediction) element.dataset.reads = `${truth} predicted correctly: ${percent(share)} % of its pixels`;
    return element;
  }

  function draw() {
    const { shares, mistakes } = report.confusion[run.value][step.value] ?? { shares: [], mistakes: [] };
    const names = report.classes.slice(0, shares.length);
    const withNumbers = names.length <= crowded();
    table.classList.toggle("crowded", !withNumbers);
    const corner = names.length ? "truth ╲ prediction" : "This run has no such step.";
    const head = make("tr", {}, make("th", { scope: "col" }, corner));
    for (const name of names) head.append(make("th", { scope: "col", className: "upright", title: name }, make("span", {}, name)));
    const body = make("tbody");
    shares.forEach((sparse, truth) => {
      const row = make("tr", {}, make("th", { scope: "row", title: names[truth] }, names[truth]));
      dense(sparse, names.length).forEach((share, prediction) =>
        row.append(cell(share, names[truth], names[prediction], withNumbers)));
      body.append(row);
    });
    table.replaceChildren(make("thead", {}, head), body);
    find("#mistakes tbody").replaceChildren(
      ...mistakes.map((texts) => make("tr", {}, ...texts.map((text) => make("td", {}, text)))));
  }

  table.addEventListener("pointerover", (event) => {
    const reads = event.target.closest("td")?.dataset.reads;
    if (reads) find("#confusion-pointed").textContent = reads;
  });
  run.addEventListener("change", draw);
  step.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
  draw();
  reveal(find("#confusion-browser"));
}
