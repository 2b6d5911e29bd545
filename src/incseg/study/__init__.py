"""Many runs as one: what they share, in which order and how many at once they are trained, what is kept of them."""
