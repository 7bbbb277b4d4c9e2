"""The clients that agents run in: where each keeps its files, and how our part goes in and out."""
