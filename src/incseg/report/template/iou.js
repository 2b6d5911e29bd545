// Chooses which runs the table of IoU per class shows.
{
  const select = find("#iou-run");
  const cells = document.querySelectorAll("#iou-table [data-run]");
  const show = () => {
    for (const cell of cells) cell.hidden = select.value !== "" && cell.dataset.run !== select.value;
  };
  select.addEventListener("change", show);
  reveal(select.closest(".choice"));

  const box = find("#iou-table").parentElement;
  if (matchMedia("(max-width: 30rem)").matches && box.scrollWidth > box.clientWidth) { // one run at a time
    select.value = select.options[select.options.length - 1].value;
    show();
  }
}
