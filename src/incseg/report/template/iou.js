// Chooses which runs the table of IoU per class shows.
{
  const select = find("#iou-run");
  const cells = document.querySelectorAll("#iou-table [data-run]");
  select.addEventListener("change", () => {
    for (const cell of cells) cell.hidden = select.value !== "" && cell.dataset.run !== select.value;
  });
  reveal(select.closest(".choice"));
}
