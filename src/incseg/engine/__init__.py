"""The engine: trains the steps one after another, scores them, and resumes after an interruption."""
