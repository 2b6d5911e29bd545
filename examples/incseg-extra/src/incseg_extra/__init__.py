"""An example of a package that adds a method and a dataset to incseg."""
