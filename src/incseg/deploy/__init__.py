"""For people with a trained model: extend it, let it look at images, take it away, show it."""
