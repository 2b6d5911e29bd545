"""For people with a trained model: load it, segment images, export it, show it in a browser, describe it in a card."""
