"""What a run learnt and lost, for people: tables, figures and one page. Reads result files only."""
