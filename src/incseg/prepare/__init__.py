"""Getting datasets: what may be downloaded is, what may not is asked for."""
