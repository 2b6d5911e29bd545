"""The paper's tables again: which runs they need, running them, and ours beside the paper's numbers."""
