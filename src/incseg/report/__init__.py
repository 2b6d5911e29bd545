"""For people who compare runs: tables, charts, pictures and one HTML page, all read from run folders."""
