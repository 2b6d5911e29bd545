"""Which images and labels a step may see: the steps of a protocol, published lists, and extensions."""
