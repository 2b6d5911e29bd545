// A button that switches between the system's theme, light and dark.
{
  const schemes = [["light dark", "system"], ["light", "light"], ["dark", "dark"]];
  const button = find("#theme");
  let current = 0;
  button.addEventListener("click", () => {
    current = (current + 1) % schemes.length;
    const [scheme, name] = schemes[current];
    document.documentElement.style.colorScheme = scheme;
    button.textContent = `theme: ${name}`;
  });
  reveal(button);
}
