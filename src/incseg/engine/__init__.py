"""The engine: learns the steps one after another, scores them, and survives being killed."""
